"""Lower-priority pods evicted for a pending one."""
