"""Send hosts short requests outside a run, and print their answers."""
