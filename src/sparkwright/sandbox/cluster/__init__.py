"""What simulated Sparks have that serve a model together: a link between them, and what happens to a member."""
