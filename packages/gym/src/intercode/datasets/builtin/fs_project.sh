#!/bin/bash
# The working tree of a small program in C, with its tests, texts, leftovers and an older release.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network, no compiler.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/home/dev/project
mkdir -p "$top" /home/dev/releases /home/dev/bin
cd "$top"
mkdir -p src/net include/net tests/data docs build/src build/net vendor/tinyjson scripts lang

put() { mkdir -p "$(dirname "$1")"; cat > "$1"; }

# --- sources ------------------------------------------------------------------------------------
put LICENSE_HEADER <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
EOF
put include/util.h <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
#ifndef UTIL_H
#define UTIL_H
#include <stddef.h>

char *read_all(const char *path, size_t *length);
size_t read_all_lines(const char *path, char ***lines);
void die(const char *why);

#endif
EOF
put include/parse.h <<'EOF'
#ifndef PARSE_H
#define PARSE_H

struct entry { int day; long cents; char text[64]; };
int parse_entry(const char *line, struct entry *out);

#endif
EOF
put include/version.h <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
#ifndef VERSION_H
#define VERSION_H
#define VERSION "2.4.0"
#define OLDEST_FILE_FORMAT "1.2.4.0"
#endif
EOF
put include/legacy.h <<'EOF'
/* kept for people who still build 1.x */
int old_parse(const char *line);
EOF
put include/net/sync.h <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
#ifndef SYNC_H
#define SYNC_H
#include "../parse.h"
int sync_entries(const struct entry *list, int count);
#endif
EOF
put include/net/proxy.h <<'EOF'
#ifndef PROXY_H
#define PROXY_H
int proxy_open(const char *host);
#endif
EOF
put src/main.c <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
#include <stdio.h>
#include "util.h"
#include "parse.h"
// #include "legacy.h"
#include "version.h"

int main(int argc, char **argv)
{
	size_t length;
	char *text;

	if (argc != 2)
		die("usage: ledgerline FILE");
	/* TODO accept several files */
	text = read_all(argv[1], &length);
	printf("ledgerline " VERSION ": %zu bytes\n", length);
   
	return text == NULL;
}
EOF
put src/util.c <<'EOF'
#include <stdio.h>
#include <stdlib.h>
#include "util.h"

/* Ledgerline - free to use and change, see LICENSE */
/* read_all: the whole file; see also unread_all */
char *read_all(const char *path, size_t *length)
{
	FILE *file = fopen(path, "rb");	// TODO: pipes

	if (!file)
		die("read_all: cannot open");
	*length = 0;
	fclose(file);
	return NULL;
}

size_t read_all_lines(const char *path, char ***lines)
{
	size_t length;

	*lines = NULL;
	return read_all(path, &length) ? length : 0;
}
	
void unread_all(void)
{
}

void die(const char *why)
{
	fprintf(stderr, "%s\n", why);
	exit(1);
}
EOF
put src/parse.c <<'EOF'
/* Ledgerline - free to use and change, see LICENSE */
#include "parse.h"

int parse_entry(const char *line, struct entry *out)
{
	/* todo: negative amounts */
	out->day = line[0];
	/* See TODOS.txt for the rest */
	return 0;
}
EOF
put src/net/sync.c <<'EOF'
  #include "net/sync.h"

int sync_entries(const struct entry *list, int count)
{
	(void)list;
	return count; /* (TODO) send them */
}
EOF
put vendor/tinyjson/tinyjson.c <<'EOF'
/* somebody else's code */
#include "tinyjson.h"
/* TODO unicode */
char *read_all(const char *path);
EOF
printf 'char *read_all(const char *path); /* 2.4.0 */\n' > vendor/tinyjson/tinyjson.h
printf 'object\n' > vendor/tinyjson/tinyjson.o
printf 'ship this object: its source is lost\n' > vendor/tinyjson/codec.o
for part in main util parse; do
    printf 'object %s\n' "$part" > "build/src/$part.o"
    printf '%s.o: src/%s.c include/util.h\n' "$part" "$part" > "build/src/$part.d"
done
printf 'object sync\n' > build/net/sync.o
printf 'sync.o: src/net/sync.c\n' > build/net/sync.d
printf 'stray object\n' > src/util.o
printf 'stray\n' > src/net/sync.d
mkdir src/conf.d
printf 'tabs = 8\n' > src/conf.d/style
printf 'a text about .o files\n' > docs/objects.o.md
printf '2.4.0\n' > VERSION
printf 'pack files older than 12.4.0 are refused; 2.4.01 was a misprint; 2x4y0 is a pattern\n' > docs/pack.txt
printf '# Ledgerline\n\nThis is Ledgerline 2.4.0. It reads ledgers.\n\nBefore 2.4.0 it did not.\n' > README.md
printf 'read_all is described in util.h.\n' > docs/api.txt
printf 'LEDGERLINE = 2.4.0\nall:\n\tcc -Iinclude -o ledgerline src/*.c src/net/*.c\n' > Makefile
printf '*.o\n*.d\n' > .gitignore
put CHANGELOG.md <<'EOF'
# Changes

## 2.4.0 - 2024-02-20
- sync over the network
- fixed: empty lines in a ledger
- fixed: crash on a missing file

## 2.3.1 - 2024-01-09
- fixed: totals over a million

## 2.3.0 - 2023-11-30
- several currencies
- faster start

## 2.2.0 - 2023-08-01
- first public release
EOF

# --- texts --------------------------------------------------------------------------------------
put docs/guide.md <<'EOF'
# Guide

Read this first.

## Ledgers

A ledger is a text file with one entry in each line.

```
# day  amount  text
## 12  -3.50   coffee
```

### Amounts

Amounts may be negative.
#hashtags are not headings

## Totals

Run `ledgerline FILE`; the totals of each month come first, then those of the year, then the rest of them.

#### Rounding

Half a cent is rounded to even.
EOF
printf 'To be done one day:\n- TODO a better name\n' > TODOS.txt

# --- tests ---------------------------------------------------------------------------------------
printf '#!/bin/bash\r\n# reads a ledger\r\necho "1..1"\r\necho "ok 1 - read"\r\n' > tests/test_read.sh
printf '#!/bin/bash\necho "1..2"\necho "ok 1 - sum"\necho "ok 2 - sum of none"\n' > tests/test_sum.sh
printf '#!/bin/bash\r\necho "1..1"\r\necho "not ok 1 - sync"\r\n' > tests/test_sync.sh
printf 'entry;amount\r\nrent;-900.00\r\n' > tests/data/windows.csv
printf 'entry;amount\nrent;-900.00\n' > tests/data/unix.csv
chmod 755 tests/test_sum.sh
put tests/results.log <<'EOF'
# test_read.sh
1..3
ok 1 - read
ok 2 - read an empty file
not ok 3 - read a pipe
# test_sum.sh
1..4
ok 1 - sum
not ok 2 - sum of none # TODO known
ok 3 - sum of many
ok 4 - sum when it is not okay # skip slow
# test_sync.sh
1..2
not ok 1 - sync
not ok 2 - sync twice
EOF

# --- scripts with faults --------------------------------------------------------------------------
put scripts/linecount.sh <<'EOF'
# linecount.sh DIR: how many text files there are, and how many lines in them
cd $1
files=0
lines=0
for f in $(ls *.txt); do
    files=$((files + 1))
    n=$(wc -l $f)
    lines=$((lines + n))
done
echo "$files files, $lines lines"
EOF
put scripts/release.sh <<'EOF'
#!/bin/bash
# release.sh: prints what a release would hold
cat VERSION
EOF
chmod 755 scripts/release.sh

# --- translations ----------------------------------------------------------------------------------
put lang/en.lang <<'EOF'
# reference texts
greeting=Welcome to Ledgerline
file.open=Open a ledger
file.save=Save
file.close=Close
sum.month=Total of the month
sum.year=Total of the year = all months
error.none=No ledger is open
EOF
put lang/de.lang <<'EOF'
file.save=Sichern
greeting=Willkommen bei Ledgerline
sum.year=Jahressumme = alle Monate
edit.undo=Rückgängig
file.open=Kassenbuch öffnen
EOF
put lang/fr.lang <<'EOF'
sum.month=Total du mois
file.close=Fermer
file.close.all=Tout fermer
error.none=Aucun livre ouvert
greeting=Bienvenue dans Ledgerline
EOF
put lang/sv.lang <<'EOF'
greeting=Välkommen till Ledgerline
file.open=Öppna en kassabok
file.save=Spara
file.close=Stäng
sum.month=Månadens summa
sum.year=Årets summa = alla månader
error.none=Ingen kassabok är öppen
EOF
put .editorconfig <<'EOF'
[*.c]
indent_style = tab
EOF

# --- the release before this one ---------------------------------------------------------------------
old=/home/dev/releases/ledgerline-2.3.0
mkdir "$old"
cp -a src include docs tests scripts lang Makefile README.md VERSION CHANGELOG.md LICENSE_HEADER "$old"
cd "$old"
rm -r src/net include/net src/util.o lang/sv.lang docs/guide.md tests/data/unix.csv
printf '2.3.0\n' > VERSION
sed -i 's/2\.4\.0/2.3.0/' README.md Makefile include/version.h
sed -i '/^## 2\.4\.0/,/^$/d; /^## 2\.3\.1/,/^$/d' CHANGELOG.md
printf 'int old_parse(const char *line) { return line[0]; }\n' > src/legacy.c
printf 'How to come from 1.x\n' > 'docs/from 1.x.txt'
cd ..
find "$old" -exec touch -h -d '2023-11-30 09:00:00' {} +
tar --sort=name --owner=0 --group=0 --numeric-owner -cf - ledgerline-2.3.0 | gzip -n > ledgerline-2.3.0.tar.gz
rm -r "$old"

find /home/dev -exec touch -h -d '2024-02-20 16:00:00' {} +
