"""Reports of runs: tables, text, an HTML page, and exports in formats of other programs."""
