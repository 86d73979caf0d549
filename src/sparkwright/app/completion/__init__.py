"""Shell completion: the commands, and the names of hosts, recipes and playbooks as the shell reads them from the project."""
