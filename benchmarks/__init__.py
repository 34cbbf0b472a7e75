"""Timings as ratios against a peer that is measured in the same run. ``make bench`` runs all, ``ROW=P7`` one."""
