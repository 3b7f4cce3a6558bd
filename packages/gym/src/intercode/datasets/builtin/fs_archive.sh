#!/bin/bash
# A family's and a club's old files: photos, letters, an inbox, a ledger, snapshots in several parts.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/data/archive
mkdir -p "$top"
cd "$top"
mkdir -p photos/2019 photos/2020/summer photos/2021 inbox 'inbox/to sort/club papers' letters/2018 letters/2020 \
    ledger parts snapshots links shelf/a shelf/b

# --- photos: stand-ins of a few bytes, some of them twice -------------------------------------------
photo() { printf 'JPEG\377\330 %s\n' "$1" > "$2"; }
photo lake photos/2019/IMG_20190714_101500.jpg
photo boat photos/2019/IMG_20190714_102233.JPG
photo dog photos/2019/IMG_20191224_183000.jpeg
photo tree photos/2019/IMG_20191224_190512.JPG
photo lake photos/2020/IMG_20200101_000007.jpg
photo hill photos/2020/IMG_20200229_120000.Jpg
photo beach photos/2020/summer/IMG_20200805_143015.jpg
photo beach photos/2020/summer/IMG_20200805_143016.JPG
photo dog photos/2020/summer/dog.jpg
photo tower photos/2021/IMG_20210310_080910.jpg
photo boat photos/2021/IMG_20210310_081000.jpg
photo lake photos/2021/lake.jpg
photo 'lake ' photos/2021/lake2.jpg
printf 'the photos of 2021 are not sorted yet\n' > photos/2021/README.txt
printf 'a list: lake.JPG boat.JPG\n' > photos/list.JPG.txt
mkdir photos/2021/raw.JPG
printf 'not a photo but a folder of them\n' > photos/2021/raw.JPG/about.txt

# --- letters ----------------------------------------------------------------------------------------
letter() { printf 'Dear %s,\n\n%s\n\nYours, %s\n' "$2" "$3" "$4" > "$1"; }
letter letters/2018/01-anna.txt Anna 'the roof is mended at last, and the bill was fair.' Viktor
letter letters/2018/02-anna.txt Anna 'thank you for the plums. Half of them became jam.' Viktor
letter letters/2018/03-club.txt Members 'the meeting moves to the harbour hall. Bring chairs.' Olga
letter letters/2020/01-olga.txt Olga 'I cannot come in March; nobody can.' Anna
letter letters/2020/02-viktor.txt Viktor 'the plums are ripe again. Come when you may.' Anna
letter letters/2020/03-members.txt Members 'the fee stays at 40. Pay it to Viktor, not to Olga.' Olga
printf 'Dear Anna,\n\nthis one was never sent.\n' > letters/2020/.draft.txt

# --- inbox ------------------------------------------------------------------------------------------
printf 'minutes\n' > 'inbox/2019-03-02 minutes of the board.txt'
printf 'minutes two\n' > 'inbox/2019-11-30 minutes.txt'
printf 'fee list\n' > 'inbox/2020-01-15 fee list.csv'
printf 'plan\n' > 'inbox/2020-1-5 plan.txt'
printf 'flyer\n' > 'inbox/2019-03-09 flyer for the  regatta.txt'
printf 'bad month\n' > 'inbox/2020-13-01 calendar.txt'
printf 'no date\n' > 'inbox/song book.txt'
printf 'dash\n' > 'inbox/-urgent note.txt'
printf 'statutes\n' > 'inbox/to sort/club papers/statutes of 1998.txt'
printf 'map\n' > 'inbox/to sort/club papers/map.txt'
printf 'wishes\n' > 'inbox/to sort/wish list.txt'
printf 'plain\n' > inbox/plain.txt

# --- ledger ------------------------------------------------------------------------------------------
cat > ledger/2019.csv <<'EOF'
date,text,amount,balance
2019-01-01,carried over,120.50,120.50
2019-01-12,member fees,400.00,520.50
2019-02-03,harbour rent,-275.25,245.25
2019-03-17,paint,-48.90,196.35
2019-05-02,"gifts, spring fair",310.05,506.40
2019-06-21,"boat, second hand",-490.00,16.40
2019-08-30,regatta,255.55,271.95
2019-12-01,insurance,-99.99,171.96
EOF
cat > ledger/2020.csv <<'EOF'
date,text,amount,balance
2020-01-01,carried over,171.96,171.96
2020-01-20,member fees,440.00,611.96
2020-02-11,harbour rent,-275.25,336.71
2020-04-06,rent given back,75.25,411.96
2020-07-19,gifts,20.10,432.06
2020-09-09,new sails,-431.07,0.99
2020-11-02,loan from Olga,50.00,50.99
EOF

# --- a bundle that was cut into parts -------------------------------------------------------------------
mkdir -p bundle/minutes bundle/songs
for n in 1 2 3 4 5 6 7 8; do
    awk -v s="$((n * 991))" 'BEGIN { for (i = 0; i < 12; i++) { s = (s * 16807) % 2147483647; print "item", i, s } }' \
        > "bundle/minutes/board-$n.txt"
done
printf 'The harbour song\nLa la la\n' > 'bundle/songs/harbour song.txt'
find bundle -exec touch -d '2021-04-01 12:00:00' {} +
tar --sort=name --owner=0 --group=0 --numeric-owner -cf - bundle | gzip -n > bundle.tar.gz
sha256sum bundle.tar.gz > parts/bundle.sha256
size=$(wc -c < bundle.tar.gz)
step=$((size / 11 + 1))
for n in 1 2 3 4 5 6 7 8 9 10 11; do
    tail -c +$(((n - 1) * step + 1)) bundle.tar.gz | head -c "$step" > "parts/bundle.part-$n"
done
rm -r bundle bundle.tar.gz

# --- snapshots: one full, then what came and went --------------------------------------------------------
pack() { # name of the snapshot; packs the folder "state"
    find state -exec touch -h -d '2021-01-01 00:00:00' {} +
    tar --sort=name --owner=0 --group=0 --numeric-owner -cf - -C state . | gzip -n > "snapshots/$1.tar.gz"
    rm -r state
}
mkdir -p state/books state/tools
printf 'one\n' > state/books/one.txt
printf 'two\n' > state/books/two.txt
printf 'three\n' > state/books/three.txt
printf '#!/bin/bash\necho tidy\n' > state/tools/tidy.sh
chmod 755 state/tools/tidy.sh
printf 'index: one two three\n' > state/index.txt
pack full
mkdir -p state/books
printf 'two, second edition\n' > state/books/two.txt
printf 'four\n' > state/books/four.txt
printf 'books/one.txt\n' > state/DELETED
printf 'index: two three four\n' > state/index.txt
pack change-1
mkdir -p state/books
printf 'one, found again\n' > state/books/one.txt
printf 'tools\nbooks/three.txt\n' > state/DELETED
printf 'index: one two four\n' > state/index.txt
pack change-2
mkdir -p 'state/loose papers'
printf 'index: two four, papers\n' > state/index.txt
printf 'receipt\n' > 'state/loose papers/receipt 1.txt'
printf 'books/one.txt\n' > state/DELETED
chmod 600 'state/loose papers/receipt 1.txt'
pack change-10

# --- links and shelves -------------------------------------------------------------------------------------
ln -s ../photos/2019 links/first-year
ln -s ../photos/2017 links/zero-year
ln -s /data/archive/letters/2020/02-viktor.txt links/plums
ln -s ../letters/2018/04-anna.txt links/reply
ln -s zero-year links/again
ln -s . links/here
printf 'a note beside the links\n' > links/note.txt
for n in 1 2 3; do
    printf 'chapter %s of the chronicle\n' "$n" > "shelf/a/chapter $n.txt"
    cp "shelf/a/chapter $n.txt" "shelf/b/ch$n.txt"
done
printf 'chapter 4 of the chronicle\n' > 'shelf/a/chapter 4.txt'
printf 'chapter 4 of the Chronicle\n' > shelf/b/ch4.txt
chmod 600 shelf/b/ch2.txt

# --- the list of what should be here; three things happened since ------------------------------------------
find letters ledger shelf -type f -print0 | sort -z | xargs -0 sha256sum > MANIFEST.sha256
printf 'P.S. The jam is finished.\n' >> letters/2018/02-anna.txt
rm letters/2018/03-club.txt
printf 'Dear Olga,\n\nhappy birthday!\n\nYours, Viktor\n' > 'letters/2020/04 olga.txt'
printf 'sorted by Olga\n' > shelf/a/.order

find "$top" -exec touch -h -d '2022-05-05 05:05:05' {} +
