#!/bin/bash
# The server of a small tea merchant: bills, web logs, mail, backups, a wiki, jobs, readings.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/srv/marlow
log=/var/log/marlow
mkdir -p "$top" "$log" /etc/marlow /home/ana /home/bo /var/spool/marlow/mail
cd "$top"

# --- bills: two runs a month, in two formats, and credit notes -------------------------------
mkdir -p billing/2024/04 billing/2024/05 billing/2024/06
bills() { # seed, month, first invoice, first order, count
    awk -v s="$1" -v month="$2" -v invoice="$3" -v order="$4" -v count="$5" 'BEGIN {
        print "invoice;date;customer;order;amount"
        for (i = 0; i < count; i++)
            printf "%d;%02d.%s.2024;K%d;%d;%d,%02d\n", invoice + i, 1 + i * 28 / count, month,
                1001 + r(90), order + i, 8 + r(240), r(100)
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
bills 11 04 240401 49800 110 > billing/2024/04/invoices.csv
bills 12 05 240501 50200 130 > billing/2024/05/invoices.csv
bills 13 06 240701 50400 90 > billing/2024/06/invoices.csv
{
    printf '"number","customer_no","order_ref","issued","total"\r\n'
    bills 14 05 240651 50340 38 | tail -n +2 | awk -F';' '{
        split($2, d, "."); sub(",", ".", $5)
        printf "\"%s\",\"%s\",\"ORD-0%s\",\"2024-05-%s\",\"%s\"\r\n", $1, $3, $4, d[1], $5 }'
    printf '"240689","K1042","ORD-050231","2024-05-30","118.40"\r\n'
    printf '"240690","K1066","ORD-050288","2024-05-30","64.15"\r\n'
    printf '"240691","K1042","ORD-050390","2024-05-31","23.90"\r\n'
    printf '"240692","K1057","ORD-049877","2024-05-31","77.05"\r\n'
} > billing/2024/05/late-run.csv
sed -i -e 's/^240532;.*/240532;08.05.2024;K1042;50231;118,40/' -e 's/^240589;.*/240589;19.05.2024;K1066;50288;64,15/' \
    -e 's/^240578;.*/240578;17.05.2024;K1088;50277;31,50/' -e 's/^240579;.*/240579;17.05.2024;K1088;50277;31,50/' \
    billing/2024/05/invoices.csv
sed -i 's/^240478;.*/240478;20.04.2024;K1057;49877;77,05/' billing/2024/04/invoices.csv
printf 'note;invoice;date;reason\n' | tee billing/2024/04/credit-notes.csv > billing/2024/05/credit-notes.csv
printf 'G2404-1;240417;22.04.2024;goods damaged\nG2404-2;240478;29.04.2024;order came back\n' >> billing/2024/04/credit-notes.csv
printf '%s\n' 'G2405-1;240513;16.05.2024;goods damaged' 'G2405-2;240579;21.05.2024;billed twice' \
    'G2405-3;240691;31.05.2024;wrong tea sent' >> billing/2024/05/credit-notes.csv
printf '%s\n' 'note;invoice;date;reason' 'G2406-1;240690;04.06.2024;billed twice, see our letter' \
    'G2406-2;240733;12.06.2024;goods damaged' > billing/2024/06/credit-notes.csv

# --- web logs: two servers, two formats, two time zones --------------------------------------
mkdir -p "$log/web1" "$log/web2"
requests() { # seed, format, day, first and last minute of the failure, in local time
    awk -v s="$1" -v format="$2" -v day="$3" -v from="$4" -v till="$5" 'BEGIN {
        n = split("/ /teas/green /teas/black /basket /pay /search?q=oolong /teas/500 /help /img/pot.png", path, " ")
        for (minute = 540; minute < 1080; minute++) {
            count = 2 + r(2)
            for (i = 0; i < count; i++) {
                second = int(60 * i / count) + r(15)
                status = r(29) ? 200 : 404
                if (!r(83)) status = 500
                if (i == 1) status = 200
                if (minute >= from && minute <= till) status = 502 + r(2)
                if (format == "combined")
                    printf "10.1.%d.%d - - [%02d/May/2024:%02d:%02d:%02d +0200] \"GET %s HTTP/1.1\" %d %d\n", r(9), 1 + r(250),
                        day, minute / 60, minute % 60, second, path[1 + r(n)], status, 200 + r(9000)
                else
                    printf "2024-05-%02dT%02d:%02d:%02dZ ms=%d status=%d method=GET path=%s\n", day, minute / 60 - 2,
                        minute % 60, second, 3 + r(700), status, path[1 + r(n)]
            }
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
requests 21 combined 13 -1 -2 | gzip -n > "$log/web1/access.log.2.gz"
requests 22 combined 14 822 871 > "$log/web1/all"
grep -n -m1 ':14:18:' "$log/web1/all" | cut -d: -f1 > "$log/web1/cut"
head -n "$(cat "$log/web1/cut")" "$log/web1/all" > "$log/web1/access.log.1"
tail -n "+$(($(cat "$log/web1/cut") + 1))" "$log/web1/all" > "$log/web1/access.log"
rm "$log/web1/all" "$log/web1/cut"
requests 23 combined 15 600 603 >> "$log/web1/access.log"
requests 24 plain 13 700 705 | gzip -n > "$log/web2/requests-2024-05-13.log.gz"
requests 25 plain 14 847 884 | gzip -n > "$log/web2/requests-2024-05-14.log.gz"
requests 26 plain 15 -1 -2 > "$log/web2/requests-2024-05-15.log"

# --- logins ------------------------------------------------------------------------------------
printf '%s\n' '# our own networks' 'office 192.0.2.0/24' 'vpn 10.8.0.0/16' > /etc/marlow/networks
logins() { # seed, day, lines
    awk -v s="$1" -v day="$2" -v lines="$3" 'BEGIN {
        split("root admin bo ana test oracle pi", name, " ")
        for (i = 0; i < lines; i++) {
            k = r(10); t = sprintf("May %2d %02d:%02d:%02d vault sshd[%d]: ", day + i * 6 / lines, int(i * 144 / lines) % 24, r(60), r(60), 900 + i)
            if (k < 5) print t "Failed password for " (r(2) ? "root" : "invalid user " name[5 + r(3)]) " from 203.0.113." 70 + r(9) " port " 30000 + r(9999) " ssh2"
            else if (k < 6) print t "Failed password for ana from 203.0.113.5 port " 30000 + r(9999) " ssh2"
            else if (k < 7) print t "Failed password for bo from 198.51.100.61 port " 30000 + r(9999) " ssh2"
            else if (k < 8) print t "Connection closed by 203.0.113." r(250) " port " 30000 + r(9999) " [preauth]"
            else print t "Accepted publickey for " (r(2) ? "bo" : "ana") " from 192.0.2." 10 + r(9) " port " 30000 + r(9999) " ssh2: ED25519"
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
{
    logins 31 1 240
    printf '%s\n' 'May  7 02:11:09 vault sshd[1611]: Failed password for ana from 198.51.100.23 port 40112 ssh2' \
        'May  7 02:14:51 vault sshd[1611]: message repeated 12 times: [ Failed password for ana from 198.51.100.23 port 40112 ssh2]'
} | gzip -n > "$log/auth.log.2.gz"
{
    logins 32 8 210
    printf '%s\n' 'May 14 07:58:40 vault sshd[1702]: Failed password for ana from 192.0.2.14 port 51822 ssh2' \
        'May 14 07:58:52 vault sshd[1702]: Failed password for ana from 192.0.2.14 port 51822 ssh2' \
        'May 14 07:59:20 vault sshd[1702]: Failed password for ana from 192.0.2.14 port 51822 ssh2' \
        'May 14 07:59:44 vault sshd[1705]: Failed password for ana from 192.0.2.14 port 51830 ssh2' \
        'May 14 08:00:02 vault sshd[1705]: Accepted password for ana from 192.0.2.14 port 51830 ssh2' \
        'May 14 23:40:17 vault sshd[1761]: Failed password for ana from 198.51.100.23 port 40377 ssh2' \
        'May 14 23:49:03 vault sshd[1761]: message repeated 31 times: [ Failed password for ana from 198.51.100.23 port 40377 ssh2]'
} > "$log/auth.log.1"
{
    printf '%s\n' 'May 15 00:02:36 vault sshd[1801]: Accepted password for ana from 203.0.113.140 port 60214 ssh2'
    logins 33 15 190
    printf '%s\n' 'May 21 03:30:12 vault sshd[1944]: Accepted password for ana from 198.51.100.23 port 41950 ssh2' \
        'May 21 09:01:00 vault sshd[1950]: Accepted password for bo from 192.0.2.12 port 50007 ssh2' \
        'May 21 09:05:31 vault sshd[1953]: Accepted publickey for ana from 203.0.113.5 port 50511 ssh2: ED25519'
} > "$log/auth.log"

# --- orders: weekly exports that overlap -------------------------------------------------------
mkdir -p orders
cat > orders/README <<'END'
Every week the shop exports all orders that are new or have changed, each with its state of that day.
Up to week 11: number;date;state;total in euros. From week 12 on: columns are named, the total is in cents.
END
orders() { # seed, week, first day of the year, first order
    awk -v s="$1" -v week="$2" -v first="$3" -v order="$4" 'BEGIN {
        split("31 29 31 30", days, " ")
        if (week >= 12) print "id\tcents\tstate\tdate"
        for (i = 0; i < 34; i++) {
            d = first + int(i / 5); month = 1
            while (d > days[month]) d -= days[month++]
            cents = 500 + r(180000); k = r(12); state = k < 9 ? "paid" : k < 11 ? "open" : "canceled"
            if (week >= 12) printf "%d\t%d\t%s\t2024-%02d-%02d\n", order + i, cents, state, month, d
            else {
                euros = int(cents / 100)
                text = euros >= 1000 ? int(euros / 1000) "." sprintf("%03d", euros % 1000) : euros
                printf "%d;%02d.%02d.2024;%s;%s,%02d\n", order + i, d, month, state, text, cents % 100
            }
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
for week in 8 9 10 11 12 13 14; do
    orders $((40 + week)) $week $((week * 7 - 5)) $((7000 + week * 40)) > "orders/week-$week.csv"
done
# later states of orders of the weeks before
for week in 9 10 11; do
    awk -F';' -v OFS=';' 'NR % 7 == 3 && $3 == "open" { $3 = "paid"; print } NR % 11 == 5 && $3 == "paid" { $3 = "refunded"; print }' \
        "orders/week-$((week - 1)).csv" >> "orders/week-$week.csv"
done
awk -F';' -v OFS='\t' 'NR % 4 == 1 && $3 != "canceled" { gsub(/[.,]/, "", $4); split($2, d, ".")
    print $1, $4, $3 == "open" ? "paid" : "refunded", "2024-" d[2] "-" d[1] }' orders/week-11.csv >> orders/week-12.csv
for week in 12 13; do
    awk -v OFS='\t' 'NR > 1 && NR % 6 == 2 && $3 != "canceled" { print $1, $2, $3 == "open" ? "paid" : "refunded", $4 }' \
        "orders/week-$week.csv" >> "orders/week-$((week + 1)).csv"
done
cp orders/week-13.csv 'orders/week-13.csv.sent'

# --- mail log ----------------------------------------------------------------------------------
{
    awk 'BEGIN {
        s = 61
        for (i = 0; i < 220; i++) {
            id = sprintf("%X", 700000 + i * 37); news = i >= 60 && i < 140 || i == 150
            t = sprintf("May  2 %02d:%02d:%02d mail ", 6 + i / 20, (i * 3) % 60, r(60))
            who = sprintf("%s%d@%s", substr("lenaotisruthivankarltheo", 1 + 4 * r(6), 4), 100 + i, r(3) ? "post.example" : "web.example")
            print t "postfix/qmgr: " id ": from=<" (news ? "news" : "shop") "@marlow.example>, size=" 900 + r(9000)
            k = r(11); if (news && i < 150 && k == 10 && again == "") again = who
            if (i == 150) { who = again; k = 0 }
            if (k == 3) who = toupper(substr(who, 1, 1)) substr(who, 2)
            if (k < 8) print t "postfix/smtp: " id ": to=<" who ">, status=sent (250 ok)"
            else if (k < 10) print t "postfix/smtp: " id ": to=<" who ">, status=deferred (451 try later)"
            else print t "postfix/smtp: " id ": to=<" who ">, status=bounced (550 no such user)"
            if (k == 8) late = late t "postfix/smtp: " id ": to=<" who ">, status=sent (250 ok)\n"
            if (k == 9) late = late t "postfix/smtp: " id ": to=<" who ">, status=bounced (gave up after 5 days)\n"
        }
        printf "%s", late
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
} > "$log/mail.all"
awk '/gave up/' "$log/mail.all" | sed 's/^May  2/May  7/' > "$log/mail.log"
awk '!/gave up/' "$log/mail.all" | gzip -n > "$log/mail.log.1.gz"
rm "$log/mail.all"

# --- the wiki, its pages that were renamed, and its backup ---------------------------------------
mkdir -p wiki/pages/teas backup/wiki
( cd wiki/pages
printf '%s\n' '# Home' '' 'See [opening hours](hours.md), [the teas](teas/list.md#green) and [who we are](team.md).' \
    'Suppliers: [Kessler](suppliers/kessler.md), [all](suppliers.md).' > home.md
printf '%s\n' '# Opening times' '' 'Closed on Sunday. Back to [home](home.md) or [the staff](staff.md#ana).' > opening-times.md
printf '%s\n' '# People' '' '- Ana' '- Bo' '' 'They answer [questions](frequent%20questions.md).' > people.md
printf '%s\n' '# Questions' '' 'How long does [green tea](teas/list.md#green) draw? Look at [brewing](teas/brewing.md).' '' \
    '```' 'a link is written like [this](hours.md)' '```' '' 'Who can help? [Staff](staff.md), or [shop](https://shop.marlow.example/hours.md).' > questions.md
printf '%s\n' '# Suppliers' '' '[Kessler](kessler.md) sends on Monday; see also [hours](hours.md) and [hours, again](hours.md#sunday).' > suppliers.md
printf '%s\n' '# Kessler' '' 'A new contract since May. [Suppliers](suppliers.md)' > kessler-and-sons.md
printf '%s\n' '# All teas' '' '## Green' '' 'Draw 2 minutes: [brewing](brewing.md). Ask [us](../staff.md).' '## Black' 'See [the old list](list.md).' > teas/all.md
printf '%s\n' '# Brewing' '' '[All teas](list.md), [hours](../hours.md)' > teas/how-to-brew.md
)
cat > wiki/changes.log <<'END'
2024-02-01 ana edit home.md
2024-02-11 ana rename hours.md -> opening-hours.md
2024-02-12 bo edit suppliers.md
2024-03-01 bo rename staff.md -> team.md
2024-03-05 ana rename frequent questions.md -> faq.md
2024-03-09 ana rename suppliers/kessler.md -> kessler.md
2024-03-15 bo rename opening-hours.md -> opening-times.md
2024-03-16 bo rename teas/list.md -> teas/all.md
2024-04-02 ana rename team.md -> people.md
2024-04-20 bo rename kessler.md -> kessler-and-sons.md
2024-05-02 bo rename faq.md -> questions.md
2024-05-03 bo rename teas/brewing.md -> teas/how-to-brew.md
2024-05-03 bo edit teas/all.md
END

pack() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime='2024-05-01 00:00Z' -cf - "$@" | gzip -n; }
work=$(mktemp -d)
( cd "$work"
mkdir -p 'pages/old things'
for n in 1 2 3 4 5 6; do printf 'Page %s\nfirst text\n' $n > "pages/page $n.md"; done
printf 'to go\n' > 'pages/old things/list.md'
printf 'front\n' > pages/front.md
: > .deleted
pack pages .deleted > "$top/backup/wiki/full.tar.gz"
for n in 1 2 3 4 5 6 7 8 9 10 11; do
    rm -rf pages; mkdir -p pages; : > .deleted
    printf 'Page %s\ntext of change %s\n' $((n % 4)) $n > "pages/page $((n % 4)).md"
    printf 'front, changed for the %s. time\n' $n > pages/front.md
    [ $n != 3 ] || printf 'pages/old things/list.md\n' > .deleted
    [ $n != 7 ] || { printf 'pages/page 5.md\n' > .deleted; printf 'prices of the summer\n' > 'pages/summer prices.md'; }
    [ $n != 10 ] || printf 'pages/page 6.md\n' > .deleted
    pack pages .deleted > "$top/backup/wiki/inc-$n.tar.gz"
done )
rm -rf "$work"
( cd backup/wiki
sha256sum full.tar.gz inc-?.tar.gz inc-??.tar.gz > CHECKSUMS
mkdir -p /home/bo/stick/wiki /home/ana/tmp
cp inc-7.tar.gz /home/bo/stick/wiki/copy-of-7.tgz
cp inc-6.tar.gz /home/ana/tmp/inc-7.tar.gz
head -c 150 /home/bo/stick/wiki/copy-of-7.tgz > inc-7.tar.gz
cat > restore.sh <<'END'
#!/bin/bash
# restore.sh FOLDER: put the newest state of the wiki into FOLDER.
set -e
sha256sum --quiet -c CHECKSUMS
mkdir -p $1
tar -xzf full.tar.gz -C $1
for part in $(ls inc-*.tar.gz); do
    tar -xzf $part -C $1
    # pages that were deleted since the backup before
    for page in $(cat $1/.deleted); do
        rm -f $1/$page
    done
done
rm -f $1/.deleted
END
chmod 755 restore.sh
)

# --- the report of every night -------------------------------------------------------------------
mkdir -p jobs/lib jobs/reports tills
cat > jobs/nightly.sh <<'END'
#!/bin/bash
# nightly.sh DAY: write the report of a day, as 2024-05-20, from what the tills have sold.
set -eu
. ./settings
mkdir -p "$OUT"
for till in $(ls $TILLS/$1/*.csv); do
    ./lib/pieces.sh $till
done | awk -f lib/sum.awk | sort -k2nr > "$OUT/$1.txt"
END
printf '# where things are\r\nTILLS=/srv/marlow/tills\r\nOUT=/srv/marlow/jobs/reports\r\n' > jobs/settings
cat > jobs/lib/pieces.sh <<'END'
#!/bin/sh
# time,article,pieces; pieces that came back are negative
tail -n +2 $1 | cut -d, -f2,3 | tr , ' '
END
chmod 755 jobs/nightly.sh
chmod 644 jobs/lib/pieces.sh
printf '{ pieces[$1] += $2 }\nEND { for (article in pieces) print article, pieces[article] }\n' > jobs/lib/sum.awk
sold() { # seed, separator, lines
    awk -v s="$1" -v sep="$2" -v lines="$3" 'BEGIN {
        split("assam sencha oolong rooibos mint darjeeling", article, " ")
        print "time" sep "article" sep "pieces"
        for (i = 0; i < lines; i++)
            printf "%02d:%02d%s%s%s%d\n", 9 + i / 6, r(60), sep, article[1 + r(6)], sep, r(8) ? 1 + r(4) : -1
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
mkdir -p tills/2024-05-12 tills/2024-05-13 tills/2024-05-20
sold 71 , 40 > tills/2024-05-12/till1.csv
sold 72 , 31 > tills/2024-05-12/till2.csv
sold 73 , 30 > tills/2024-05-13/till1.csv
sold 74 ';' 44 > tills/2024-05-20/till1.csv
sold 75 ';' 38 | sed 's/$/\r/' > 'tills/2024-05-20/till 2 (new).csv'
sold 76 ';' 21 | head -c -1 > tills/2024-05-20/till3.csv
sold 77 ';' 9 > tills/2024-05-20/till1.csv.tmp
tail -qn +2 tills/2024-05-12/*.csv | awk -F, '{ n[$2] += $3 } END { for (a in n) print a, n[a] }' |
    sort -k2,2nr -k1,1 > jobs/reports/2024-05-12.txt
{
    printf '05-12 23:50 nightly.sh: ok\n05-13 23:50 nightly.sh: line 4: ./settings: No such file or directory\n'
    printf '05-%s 23:50 nightly.sh: line 4: ./settings: No such file or directory\n' 14 15 16 17 18 19 20
} > "$log/jobs.log"

# --- machines and their backups ------------------------------------------------------------------
cat > /etc/marlow/machines <<'END'
# name      address      also called        state
web1        10.1.0.11    shop-a             in use
web2        10.1.0.12    shop-b             in use
db1         10.1.0.21    ledger             in use
db2         10.1.0.22    ledger-copy        in use
mail        10.1.0.31    post               in use
vault       10.1.0.41    -                  in use
wiki        10.1.0.42    notes              in use
till1       10.1.2.11    front-till         in use
till2       10.1.2.12    back-till          in use
till3       10.1.2.13    market-till        retired
old-db      10.1.0.20    -                  retired
cold        10.1.3.5     thermo             in use
print       10.1.0.60    -                  in use
build       10.1.0.70    ci                 in use
END
awk 'BEGIN {
    n = split("web1 shop-b 10.1.0.21 db2 post vault notes till1 back-till till3 old-db thermo 10.1.0.60 build", name, " ")
    job = 400
    for (day = 10; day <= 23; day++) for (i = 1; i <= n; i++) {
        m = name[i]; job++; t = sprintf("2024-05-%02d %02d:%02d ", day, 1 + i / 5, (i * 11) % 60)
        if (m == "10.1.0.60" && day > 14 || m == "old-db" && day > 12 || m == "post" && day == 16) continue
        if (m == "till1" && day > 19) m = "front-till"
        if (m == "vault" && day > 16) m = "VAULT.marlow.example"
        print t "job " job " start " m
        if (m == "db2" && day > 13) { print t "job " job " failed: no space left on device"; continue }
        if (m == "web1" && day % 3 == 0) { print t "job " job " failed: connection reset"; continue }
        print t "job " job " done, " 100 + (job * 37) % 900 " MB"
        if (m == "thermo" && day > 15 || m == "notes" && day != 18 || m == "build" && day % 2) bad[job] = 1
        else bad[job] = 0
        print t "job " job " check " (bad[job] ? "failed: checksum differs" : "ok")
    }
}' > "$log/backup.all"
awk '$1 < "2024-05-19"' "$log/backup.all" > "$log/backup.log.1"
awk '$1 >= "2024-05-19"' "$log/backup.all" > "$log/backup.log"
rm "$log/backup.all"

# --- mail ------------------------------------------------------------------------------------------
letter() { # from, date, subject; the rest is the body
    local sender=${1#*<}
    printf 'From %s %s\nFrom: %s\nDate: %s\nSubject: %s\n' "${sender%>}" "$2" "$1" "$2" "$3"
    cat
    printf '\n'
}
attached() { # name; the content comes from standard input
    printf 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="=_%s"\n\n--=_%s\nContent-Type: text/plain; charset=utf-8\n\n' b1 b1
    printf '%s\n\n--=_b1\nContent-Type: text/csv\nContent-Transfer-Encoding: base64\n' "$2"
    printf 'Content-Disposition: attachment;\n filename="%s"\n\n' "$1"
    base64 -w 76
    printf '%s\n' '--=_b1--'
}
bill() { printf 'pos;tea;kg;price\n'; awk -v s="$1" 'BEGIN { for (i = 1; i < 9; i++) { s = (s * 16807) % 2147483647
    printf "%d;%s;%d;%d,50\n", i, substr("assam sencha oolong ", 1 + 7 * (s % 3), 6), s % 40, s % 23 } }'; }
{
    printf 'MIME-Version: 1.0\n\nOur invoice comes tomorrow.\n\nKessler\n' | letter 'M. Kessler <mk@kessler.example>' 'Thu May  2 08:00:00 2024' 'Invoice'
    bill 81 | attached kessler-2024-05.csv 'Please find our invoice attached.' |
        letter 'M. Kessler <mk@kessler.example>' 'Fri May  3 08:10:00 2024' 'Invoice May'
    printf '\nDear all,\n\n>From Monday on we close at five.\n\nBo\n' | letter 'Bo <bo@marlow.example>' 'Fri May  3 09:00:00 2024' 'Hours'
    bill 82 | attached invoice.csv 'The corrected invoice. Sorry for the mistake!' |
        letter 'Kessler Accounts <accounts@kessler.example>' 'Mon May  6 10:31:00 2024' '=?utf-8?B?UmU6IEludm9pY2UgTWF5?='
    bill 83 | attached kessler-corrected.csv 'You have asked for the April invoice again: here it is, corrected.' |
        letter 'M. Kessler <mk@kessler.example>' 'Tue May  7 07:45:00 2024' 'Invoice April, corrected'
    bill 84 | attached corrected.csv 'Our corrected invoice for May.' |
        letter 'Kestler Tea <info@kestler.example>' 'Tue May  7 12:00:00 2024' 'Corrected invoice May'
    printf '\nDear Ms. Marlow,\n\nthe corrected invoice for May is still open. Please pay by Friday.\n\nKessler\n' |
        letter 'M. Kessler <mk@kessler.example>' 'Tue May 21 08:00:00 2024' 'Reminder: corrected invoice May'
} > /var/spool/marlow/mail/office

# --- what the staff shares ---------------------------------------------------------------------------
mkdir -p share/pictures share/pictures/2023 share/letters share/old/pictures
awk 'BEGIN { s = 91; for (f = 1; f <= 24; f++) { name = sprintf("share/pictures/IMG_%04d.raw", f); n = 200 + (f * 137) % 900
    for (i = 0; i < n; i++) { s = (s * 16807) % 2147483647; printf "%d ", s % 100000 > name } close(name) } }'
( cd share
cp pictures/IMG_0003.raw 'pictures/2023/kettle.raw'
cp pictures/IMG_0003.raw 'old/pictures/copy of kettle.raw'
cp pictures/IMG_0011.raw pictures/2023/IMG_0011.raw
ln pictures/IMG_0012.raw pictures/2023/IMG_0012.raw
ln pictures/2023/IMG_0011.raw old/pictures/IMG_0011.raw
ln -s ../IMG_0007.raw pictures/2023/IMG_0007.raw
cp pictures/IMG_0009.raw old/pictures/.IMG_0009.raw
tr 1 7 < pictures/IMG_0015.raw > old/pictures/IMG_0015.raw
gzip -nc pictures/IMG_0016.raw > old/pictures/IMG_0016.raw.gz
: > letters/empty.txt
: > 'letters/also empty.txt'
printf 'Dear tea lovers\n' > letters/dear.txt
printf 'Dear tea lovers\n' > 'letters/dear (2).txt'
)

# --- the newsletter: sign-ups in three encodings, and those who left it --------------------------------
mkdir -p newsletter/sign-ups
cat > newsletter/README <<'END'
sign-ups/ has the lists of each year, as the programs of that year wrote them. Until 2022 everybody on a list
wanted the newsletter; since 2023 the list says so of each.
Who has left is in left.txt. Since last winter people leave by a mail to news@ whose subject is "unsubscribe",
in small letters or capitals, and no more; what is below does not matter. They are not in left.txt yet.
END
{
    printf 'name;email;since\n'
    printf 'J\374rgen Stra\337;Juergen@post.example;2021-02-01\nAm\351lie Roux;amelie@post.example;2021-02-03\n'
    printf 'Bj\366rn;bjorn.s@web.example;2021-03-10\nLena K.;LENA@web.example;2021-04-01\nOtis;otis@post.example;2021-04-19\n'
    printf 'Ma\353l;mael@web.example;2021-06-30\nTheo;theo@post.example;2021-08-02\nRuth;ruth+tea@web.example;2021-09-09\n'
} > newsletter/sign-ups/2021.csv
printf "$(
    printf '\\xff\\xfe'
    printf '%s\r\n' $'email\tname' $'Nora@web.example\tNora' $'ivan@post.example\tIvan' $'lena@web.example\tLena' \
        $'karl@post.example\tKarl' $'MAEL@web.example\tMael' $'zoe_b@web.example\tZoe' |
        od -An -v -tx1 | tr -s ' ' '\n' | sed '/^$/d; s/.*/\\x&\\x00/' | tr -d '\n'
)" > newsletter/sign-ups/2022.txt
{
    printf '\357\273\277"email","name","newsletter"\r\n'
    printf '"%s","%s","%s"\r\n' pia@post.example 'Pia, the baker' yes otto@web.example Otto no Ruth+Tea@web.example Ruth yes \
        sven@post.example Sven yes ida@web.example 'Ida ""the tea"" L.' no karl@post.example Karl yes ada@post.example Ada yes \
        olga@post.example 'Olga yes' no
} > newsletter/sign-ups/2023.csv
printf '%s\n' 'otis@post.example' 'Ivan@Post.example ' '# by phone' 'zoe_b@web.example' '' 'gone@web.example' > newsletter/left.txt
{
    printf '\nhello\n' | letter 'Amelie <Amelie@post.example>' 'Mon Jan  8 08:00:00 2024' 'unsubscribe'
    printf '\nhello\nSubject: unsubscribe\n' | letter 'Nora <nora@web.example>' 'Mon Jan  8 09:00:00 2024' 'Fwd: how to leave?'
    printf '\nhello\n' | letter 'sven@post.example' 'Tue Jan  9 09:00:00 2024' 'Please do not unsubscribe me'
    printf 'X-Mailer: t\n\n' | letter 'Mael <mael@web.example>' 'Wed Feb  7 19:20:00 2024' 'UNSUBSCRIBE'
    printf '\n>From now on I want no mails, ada@post.example\n' | letter 'Pia <pia@post.example>' 'Fri Mar  1 19:20:00 2024' 'Unsubscribe'
} > /var/spool/marlow/mail/news

# --- the cold room ---------------------------------------------------------------------------------------
mkdir -p cold
cat > cold/README <<'END'
Two sensors, a reading every 20 minutes. A sensor that has lost its cable gives -127 °C or 85 °C, which is no reading.
The room may have 9 °C at most; since 18 April, when the white tea came, 7 °C. Exactly that is still allowed.
New firmware on 11 April.
END
awk 'BEGIN {
    split("9.0 8.9 6.1 9.1 5.0 8.0 7.2 6.6 8.8 7.4 8.2 7.0 9.2 6.8 8.9 7.8 8.6 6.9 6.4 7.3 7.0 5.9 6.6 8.1 6.7 7.0 5.4 6.3 7.1 6.9", peak, " ")
    s = 121
    for (day = 1; day <= 30; day++) for (m = 0; m < 1440; m += 20) for (k = 1; k <= 2; k++) {
        c = 3 + r(20) / 10
        if (m == 60 * (11 + day % 6) && k == 1 + day % 2) c = peak[day]
        if (m == 480 && k == 1 && day % 9 == 2) c = 85
        if (m == 500 && k == 2 && day % 7 == 3) c = -127
        t = sprintf("2024-04-%02d %02d:%02d", day, m / 60, m % 60)
        if (day < 11) printf "%s sensor%d %.1f\n", t, k, c
        else printf "%sZ s=%d t=%.2fF\n", t, k, c * 9 / 5 + 32
    }
}
function r(n) { s = (s * 16807) % 2147483647; return s % n }' > cold/all
head -n 1440 cold/all | gzip -n > cold/readings-2024-04.log.1.gz
tail -n +1441 cold/all > cold/readings-2024-04.log
rm cold/all

# --- releases of the shop ----------------------------------------------------------------------------------
mkdir -p shop/releases
for version in 2.8.4 2.9.0 2.9.1 2.10.0 2.10.1 2.10.2 2.11.0 2.12.0; do
    mkdir -p "shop/releases/$version/pages"
    ( cd "shop/releases/$version"
    printf '<h1>Marlow Tea %s</h1>\n' "$version" > pages/index.html
    printf 'basket of %s\n' "$version" > pages/basket.html
    printf 'version = %s\nfreight = 4.90\n' "$version" > shop.conf
    sha256sum shop.conf pages/basket.html pages/index.html > SHA256SUMS )
done
sed -i 's/4.90/0.00/' shop/releases/2.10.1/shop.conf
rm shop/releases/2.12.0/pages/basket.html
ln -s releases/2.11.0 shop/current
cat > shop/deploy.log <<'END'
2024-03-02 10:00 check 2.9.1: 40 of 40 passed
2024-03-02 10:05 live 2.9.1
2024-03-20 09:10 check 2.10.0: 37 of 40 passed
2024-03-20 16:40 check 2.10.0: 40 of 40 passed
2024-03-20 16:45 live 2.10.0
2024-04-04 11:00 check 2.10.1: 40 of 40 passed
2024-04-04 11:10 live 2.10.1
2024-04-28 15:00 check 2.10.2: 41 of 41 passed
2024-04-28 15:02 check 2.9.1: 40 of 40 passed
2024-04-28 15:30 check 2.10.2: 39 of 41 passed
2024-05-17 14:00 check 2.12.0: 41 of 41 passed
2024-05-20 17:50 check 2.11.0: 4 of 41 passed
2024-05-20 17:51 live 2.11.0 (Bo: it is only the tests)
END

# --- prices ----------------------------------------------------------------------------------------------
mkdir -p prices
cat > prices/README <<'END'
changes.log: number, the day from which it holds (from that morning on), what. Within a day by number.
`undo N` gives the article of entry N the price back that it had before that entry took effect.
The first list is 2024-03-01.csv, the newest current.csv.
END
printf '%s\n' article,price assam,6.20 darjeeling,9.80 mint,3.10 oolong,8.40 rooibos,3.90 sencha,7.30 yunnan,6.60 > prices/2024-03-01.csv
cat > prices/changes.log <<'END'
1 2024-03-04 set mint 3.30
2 2024-03-11 set oolong 8.90
3 2024-03-12 new lapsang 7.70
4 2024-03-15 undo 2
5 2024-04-04 set sencha 7.90
6 2024-03-25 set assam 6.40
7 2024-03-28 gone yunnan
8 2024-04-01 set darjeeling 1.00
9 2024-04-02 undo 8
10 2024-04-10 set mint 3.60
11 2024-04-03 set rooibos 4.10
12 2024-04-05 undo 6
13 2024-03-30 set lapsang 7.95
14 2024-04-03 new chai 5.50
15 2024-03-31 set oolong 9.10
16 2024-04-12 gone chai
17 2024-04-02 set sencha 7.45
18 2024-04-15 new yunnan 6.90
19 2024-03-27 set oolong 8.70
END
printf '%s\n' article,price assam,6.20 darjeeling,9.80 lapsang,7.95 mint,3.60 oolong,9.10 rooibos,4.10 sencha,7.90 yunnan,6.90 > prices/current.csv

# --- jobs with a clock --------------------------------------------------------------------------------------
mkdir -p /etc/marlow/jobs.d export jobs/out.d stats
ln -s ../export jobs/out
printf 'EXPORT=/srv/marlow/export\n' > jobs/export.env
job() { # name; the script comes from standard input
    { printf '#!/bin/sh\n'; cat; } > "jobs/$1"
    chmod 755 "jobs/$1"
}
printf '. /srv/marlow/jobs/export.env\n/usr/bin/list-stock > "$EXPORT/stock.csv"\n' | job export-stock.sh
printf 'cd "$(dirname "$0")" || exit\nexec > "${TARGET:-out.d/stock.csv}"\n/usr/bin/sync-shop --all\n' | job sync-shop.sh
printf 'name=stock\n/usr/bin/feed | tee /srv/marlow/export/$name.csv > /dev/null\n' | job feed.sh
printf 'DIR=${DIR:-/srv/marlow/export}\n/usr/bin/count > "$DIR/stock.csv"\n' | job count.sh
printf '. /srv/marlow/jobs/export.env\n/usr/bin/prices > "$EXPORT/prices.csv"\n' | job prices.sh
printf 'cat /srv/marlow/export/stock.csv > /srv/marlow/stats/stock.csv\n' | job stats.sh
printf 'cd /srv/marlow/export || exit\n/usr/bin/weekend > stock.csv\n' | job weekend.sh
printf 'cp /srv/marlow/export/prices.csv /srv/marlow/export/prices.csv.bak\n' | job keep.sh
printf '# minute hour day month weekday command\n10 */6 * * * /srv/marlow/jobs/export-stock.sh\n20 * * * * /srv/marlow/jobs/prices.sh\n' \
    > /etc/marlow/jobs.d/export.cron
printf 'DIR=/srv/marlow/stats\n10 6 * * * /srv/marlow/jobs/count.sh\n10 18 * * 1-5 /srv/marlow/jobs/stats.sh\n' > /etc/marlow/jobs.d/stats.cron
printf 'TARGET=out/stock.csv\n# 10 12 * * * /srv/marlow/jobs/feed.sh\n10,40 5-7 * * 1-5 /srv/marlow/jobs/sync-shop.sh\n40 12 * * * /srv/marlow/jobs/feed.sh\n' \
    > /etc/marlow/jobs.d/shop.cron
printf '30-50/10 5-7 * * 6,0 /srv/marlow/jobs/weekend.sh\n20 3 * * * /srv/marlow/jobs/keep.sh\n50 23 * * * /srv/marlow/jobs/nightly.sh\n' \
    > /etc/marlow/jobs.d/weekend.cron
printf '10 6 * * * /srv/marlow/jobs/feed.sh\n' > /etc/marlow/jobs.d/old.cron.off

# --- who may log in where -----------------------------------------------------------------------------------
mkdir -p /etc/marlow/access.d
cat > /etc/marlow/access.d/README <<'END'
Files that end in .rules are read in the order of their names. allow or deny, whom, machine (with * for anything),
and perhaps "until DAY": that day is the last on which the line counts. The last line that fits decides; where none does, no.
@NAME is a group of /etc/marlow/groups; groups may have groups in them. Accounts are in /etc/marlow/accounts;
who is not active cannot log in anywhere.
END
printf '%s\n' 'ana active' 'bo active' 'carl active' 'dora active' 'eli left' 'fay active' 'gus active' 'hana active' 'ivo active' \
    'jana active' 'kim locked' 'lea active' 'max active' > /etc/marlow/accounts
printf '%s\n' 'ops: ana @web kim' 'web: carl dora' 'desk: fay gus hana @night' 'night: ivo eli' 'audit: jana @desk' 'all: @ops @desk lea' \
    > /etc/marlow/groups
printf '%s\n' '# everyone on the tills' 'allow @all till*' 'allow @ops *' 'deny @web db*' > /etc/marlow/access.d/10-base.rules
printf '%s\n' 'allow @audit vault' 'deny @night vault until 2024-05-19' 'deny gus v*' 'allow max vault until 2024-05-19' > /etc/marlow/access.d/20-vault.rules
printf '%s\n' 'allow @all *' > /etc/marlow/access.d/30-party.rules.old
printf '%s\n' 'deny dora *' 'allow lea va*t until 2024-05-20' 'deny hana vault until 2024-06-30' 'allow bo web*' 'allow dora web1' > /etc/marlow/access.d/90-temporary.rules

# --- orders, payments, parcels -------------------------------------------------------------------------------
mkdir -p desk/bank desk/parcels
awk 'BEGIN { s = 181; print "order,customer,total"
    for (i = 10200; i < 10260; i++) printf "%d,K%d,%d.%02d\n", i, 1001 + r(90), 10 + r(90), r(100) }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }' > desk/orders-2024-04.csv
awk -F, -v OFS='|' 'NR > 1 {
    n = $1; k = n % 10; split($3, e, "."); cents = e[1] * 100 + e[2]; spaced = substr(n, 1, 2) " " substr(n, 3)
    text = k < 3 ? "ORDER-" n : k < 6 ? "Ord. " spaced : k < 8 ? "Bestellung Nr." n " f\374r B\374ro" : "invoice 24" n - 3 " order " n
    file = n % 3 ? "2024-04" : "2024-05"
    if (n % 11 == 4) next
    if (n % 13 == 5) { pay(1000, text); pay(n % 2 ? cents - 1000 : cents - 1100, text " rest"); next }
    pay(cents, text)
    if (n % 17 == 3 || n == 10222 || n == 10229) pay(-cents, "R\374cklastschrift " text)
    if (n % 34 == 20 || n == 10229) pay(cents, "again: " text)
}
function pay(amount, what) {
    sign = amount < 0 ? "-" : ""; a = amount < 0 ? -amount : amount
    printf "%02d.%s.24  %-46s %s%d,%02d\r\n", 1 + n % 28, substr(file, 6), what, sign, int(a / 100), a % 100 > ("desk/bank/" file ".txt")
}' desk/orders-2024-04.csv
printf 'tracking;reference;state\n' > desk/parcels/swift.csv
awk -F, 'NR > 1 && $1 % 7 != 2 && $1 % 2 { printf "SW%d;M%d;%s\n", $1 * 7919 % 1000003, $1, $1 % 19 == 3 ? "label printed, never handed over" : "delivered" }' \
    desk/orders-2024-04.csv >> desk/parcels/swift.csv
awk -F, 'NR > 1 && $1 % 7 != 2 && $1 % 2 == 0 { line = line (line ? " " : "") $1 "/1"; if ($1 % 8 == 0) line = line " " $1 "/2" }
    NR % 9 == 0 { print "van of day " NR / 9 ": " line; line = "" } END { if (line) print "van, last: " line }' desk/orders-2024-04.csv > desk/parcels/van.txt
printf 'SW100001;M10250;delivered\n' >> desk/parcels/swift.csv

# --- the backup of a laptop, in parts -------------------------------------------------------------------------
mkdir -p backup/laptop-bo /home/bo/stick/laptop
work=$(mktemp -d)
( cd "$work"
mkdir -p home/docs/old home/docs/final
awk 'BEGIN { s = 191; for (i = 0; i < 900; i++) { s = (s * 16807) % 2147483647; printf "Line %d of the thesis, %d leaves of tea\n", i, s % 100000 } }' > home/docs/thesis.txt
sed 's/leaves/cups/' home/docs/thesis.txt > home/docs/old/thesis.txt
sed '1i Version 9, for print' home/docs/thesis.txt | sed '400s/.*/Line 399 was rewritten/' > home/docs/final/thesis-v9.txt
sed '1i Version 10, for print' home/docs/thesis.txt | sed '401s/.*/Line 400 was rewritten twice/' > home/docs/thesis-v10.txt
cp home/docs/old/thesis.txt home/docs/final/thesis.txt
pack home > "$work/all"
split -n 12 -d -a 2 "$work/all" "$work/p."
n=0
for part in "$work"/p.*; do n=$((n + 1)); cp "$part" "$top/backup/laptop-bo/home.tar.gz.$n"; cp "$part" "/home/bo/stick/laptop/HOME.TAR.GZ.$n"; done
)
rm -rf "$work"
( cd backup/laptop-bo && sha256sum home.tar.gz.? home.tar.gz.?? | sed 's/home.tar.gz/part/' > sums.txt
damage() { tail -c +101 "$1" > "$1.x"; { printf '%100s' ''; cat "$1.x"; } > "$1"; rm "$1.x"; }
damage home.tar.gz.3; : > home.tar.gz.8; rm home.tar.gz.11
cd /home/bo/stick/laptop && damage HOME.TAR.GZ.2; damage HOME.TAR.GZ.10; rm HOME.TAR.GZ.5 )

# --- builds ------------------------------------------------------------------------------------------------
mkdir -p ci/builds/{1..30} ci/builds/{171..200}
awk 'BEGIN {
    s = 201
    n = split("basket freight-eu login freight pay search stock tax mail print", test, " ")
    for (i = 0; i < 60; i++) {
        number = i < 30 ? 171 + i : i - 29; dir = "ci/builds/" number
        branch = i % 3 == 1 ? "bigger-font" : i % 7 == 5 ? "maintenance" : "main"
        bad = branch == "main" ? (i >= 50 || i == 20 || i == 21 || i == 26 || i == 42) : branch == "maintenance" ? i > 10 : i >= 25
        stop = i == 32 || i == 48 || i == 53
        printf "branch=%s\nstarted=2024-05-%02d %02d:%02d\ncommit=%07x\n", branch, 1 + i / 3, 8 + 4 * (i % 3), r(60), 100000000 + r(99999999) > (dir "/info")
        log_ = dir "/log"
        for (j = 1; j <= n; j++) {
            for (k = 0; k < 12; k++) printf "[%s] step %d: %s\n", test[j], k, r(9) ? "ok" : "warning: slow, failed to use cache, retried" > log_
            if (stop && j == 3) { print "build was canceled" > log_; break }
            failed = test[j] == "freight" ? bad : test[j] == "freight-eu" ? i > 4 : test[j] == "mail" ? i % 4 == 1 : 0
            printf "%s %s (%d ms)\n", failed ? "FAIL" : "PASS", test[j], 10 + r(900) > log_
        }
        close(log_); close(dir "/info")
    }
}
function r(n) { s = (s * 16807) % 2147483647; return s % n }'
gzip -n ci/builds/*/log

printf '%s\n' 'shop/ the web shop' 'wiki/ our notes' 'billing/ bills' 'jobs/ what runs by itself; its clock is in /etc/marlow' 'desk/ orders by mail' > README
printf '%s\n' 'What stands between two lines of ``` is shown as it is. A link is [text](page), as seen from the page that it is in.' > wiki/README
find "$top" "$log" /etc/marlow /home/ana /home/bo /var/spool/marlow -exec touch -h -d '2024-05-24 06:00Z' {} +
