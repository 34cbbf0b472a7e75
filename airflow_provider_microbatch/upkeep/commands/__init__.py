"""Commands that change a checkpoint: repair, rewind, set-offset. A plan is data; the dry run prints the plan, and
applying it does exactly the same. Every step can be repeated, so the next command finishes a command that was
killed."""
