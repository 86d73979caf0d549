"""What goes down to a host (a Plan) and what comes back up (Events): the only path between the two sides."""
