#!/bin/bash
# A small folder to begin with: notes, names, numbers, a log, a table, pictures, papers.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/data/start
mkdir -p "$top"/photos "$top"/papers "$top"/old "$top"/.cache
cd "$top"

printf '%s\n' 'Buy bread' 'Call the plumber' 'Water the plants' 'Pay the rent' 'Buy stamps' \
    'Return the books' 'Clean the windows' > todo.txt
printf '%s\n' Nora Ali Mei Tom Nora Ines Ali Karl Mei Nora Zoe Bo > guests.txt
printf '%s\n' 14 3 27 8 19 57 5 11 36 8 2 30 > numbers.txt
printf '%s\n' 'one two three' 'four five' 'six' 'seven eight nine ten' > words.txt
cat > server.log <<'END'
08:01 INFO started
08:02 INFO user nora came
08:05 WARN disk is nearly full
08:09 ERROR disk is full
08:10 INFO user tom came
08:12 ERROR cannot save page 7
08:15 INFO user nora left
08:20 WARN slow answer
08:25 WARN slow answer
08:28 WARN disk is nearly full
08:29 WARN slow answer
08:31 ERROR disk is full
08:40 INFO user mei came
08:44 ERROR cannot save page 9
08:50 INFO stopped
END
cat > pets.csv <<'END'
name,kind,age,town
Rex,dog,4,Lund
Mia,cat,9,Oslo
Bello,dog,2,Bergen
Tiger,cat,5,Lund
Hoppel,rabbit,1,Oslo
Luna,dog,11,Oslo
Flocke,cat,3,Bergen
END
printf '%s\n' 'colour = green' 'size = 10' 'name = first' 'sound = off' > settings.ini
printf '%s\n' '#!/bin/sh' 'echo ready' > run.sh
for picture in beach.jpg boat.jpg cat.png dog.jpg hill.png; do printf 'picture of %s\n' "$picture" > "photos/$picture"; done
printf '%s\n' 'How to bake' 'Take flour, water and salt.' > papers/bread.md
printf '%s\n' 'How to plant' 'The blue key hangs behind the door.' > papers/garden.md
printf '%s\n' 'How to travel' 'Take the night train, not the bus.' 'Bring a book.' > papers/trip.md
printf '%s\n' 'a draft' > papers/draft.txt
printf '%s\n' 'x' > old/a.tmp
printf '%s\n' 'y' > old/b.tmp
printf '%s\n' 'the report of last year' > old/report.txt
printf '%s\n' 'kept' > .cache/state
find "$top" -exec touch -d '2024-03-01 12:00:00' {} +
