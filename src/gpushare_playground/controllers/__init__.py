"""The controllers of kube-controller-manager that the playground needs: workloads, and pods whose node is gone.

Each is level-triggered: a reconciler looks at the complete current state of one object and takes the
missing steps, whatever events led there. Nothing is stored that cannot be read again from the
API, so that any of them may end at any time. Garbage collection and the emptying of namespaces are
done by the API server, which has both ends of every owner reference.
"""
