"""The controllers of kube-controller-manager that the playground needs: workloads, and pods whose node is gone.

Each is level-triggered: a reconciler looks at the whole present state of one object and takes the
steps that are missing, whatever events led there. Nothing is kept that cannot be read again from the
API, so that any of them may die at any moment. Garbage collection and the emptying of namespaces are
the API server's, which has both ends of every owner reference at hand.
"""
