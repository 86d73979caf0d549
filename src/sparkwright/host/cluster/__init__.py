"""A cluster's member on its host: its rank, and where the members' runs meet (the head's listener, a member's channel to it)."""
