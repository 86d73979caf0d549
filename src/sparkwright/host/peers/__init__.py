"""A host hands what it has proved to other hosts: who serves it, and who asks for it."""
