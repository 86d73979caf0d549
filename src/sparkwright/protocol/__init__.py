"""The protocol between laptop and host: a Plan goes down, Events come back up; nothing else passes between the two sides."""
