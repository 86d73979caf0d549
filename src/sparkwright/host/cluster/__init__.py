"""A cluster member on its host: its rank, the head's listener, and each member's channel to the head."""
