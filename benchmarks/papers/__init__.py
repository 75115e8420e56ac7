"""One module per figure or table of a paper: its claim, and whether it held."""
