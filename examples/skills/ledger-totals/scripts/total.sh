#!/bin/sh
# Print the total of a ledger: "date;amount;state", amounts as 1.234,50, without cancelled entries.
awk -F';' 'NR > 1 && $3 != "cancelled" { gsub(/[.]/, "", $2); sub(",", ".", $2); sum += $2 }
           END { printf "%.2f\n", sum }' "$1"
