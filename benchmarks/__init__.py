"""Speed and memory as ratios in one run: against peers, and against what the machine can do at best."""
