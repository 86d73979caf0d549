"""The lab: experiments of arms and loads, the play that measures them, and their results."""
