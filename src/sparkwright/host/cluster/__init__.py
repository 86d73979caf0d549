"""Where the runs of a cluster's members meet: the head's listener, a member's channel to it, and what is agreed there."""
