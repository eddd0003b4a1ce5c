"""Multi-atlas segmentation with VoteNet+ and joint label fusion (Sec. 4.4): Table 2 and its rows of Table 1."""
