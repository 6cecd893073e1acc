"""Which unit of a ResourcePolicy a pod may use now, and what each unit holds (spec §4). Pure: no I/O, no clock."""
