"""What a check of a host is: looks, judgement, record, and where it goes. Runs on the host, with no laptop."""
