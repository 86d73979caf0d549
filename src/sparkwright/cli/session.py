"""From a command to a fleet: the user's files become plans, the plans go to the hosts, the events to the console."""

from __future__ import annotations

import getpass
import platform
import secrets as random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright import lockfile, playbook, recipe
from sparkwright.cli.project import Project
from sparkwright.console.subscriber import Subscriber
from sparkwright.errors import Exit, Refused
from sparkwright.fleet import Fleet, Member
from sparkwright.inventory import Host, Inventory
from sparkwright.plan.events import Event
from sparkwright.plan.model import Plan, Task
