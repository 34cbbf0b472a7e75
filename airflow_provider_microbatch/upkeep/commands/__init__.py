"""Changing a checkpoint by command: repair, rewind, set-offset. A plan is data; the dry run prints it, and applying it
does exactly that. Every step can be repeated, so a command that was killed is finished by the next one."""
