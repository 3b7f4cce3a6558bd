"""Reports of runs: tables, text, a page of HTML, and exports in the forms of other programs."""
