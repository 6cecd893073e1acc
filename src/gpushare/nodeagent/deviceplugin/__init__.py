"""The kubelet's device plugin interface: registration, device lists, sockets, handover to the next agent."""
