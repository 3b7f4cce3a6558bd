#!/bin/bash
# The collected logs of a dozen servers, and the inventory that says which servers there are.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/var/log/fleet
mkdir -p "$top/hosts" "$top/incoming" "$top/report" /etc/fleet/groups /var/backups/fleet

# --- inventory --------------------------------------------------------------------------------
{
    printf '# host\trole\tzone\taddress\n'
    printf 'web-01\tweb\tnorth\t10.8.0.11\n'
    printf 'web-02\tweb\tnorth\t10.8.0.12\n'
    printf 'web-03\tweb\tsouth\t10.8.1.13\n'
    printf 'web-10\tweb\tsouth\t10.8.1.20\n'
    printf 'db-01\tdatabase\tnorth\t10.8.0.31\n'
    printf 'db-02\tdatabase\tsouth\t10.8.1.32\n'
    printf '# db-03\tdatabase\tsouth\t10.8.1.33\tretired in February\n'
    printf 'cache-01\tcache\tnorth\t10.8.0.41\n'
    printf 'queue-01\tqueue\tnorth\t10.8.0.51\n'
    printf 'worker-01\tworker\tnorth\t10.8.0.61\n'
    printf 'worker-02\tworker\tsouth\t10.8.1.62\n'
    printf 'worker-03\tworker\tsouth\t10.8.1.63\n'
    printf 'edge-01\tedge\twest\t10.8.2.71\n'
} > /etc/fleet/inventory.tsv
printf 'web-01\nweb-02\nweb-03\nweb-10\n' > /etc/fleet/groups/web.list
printf 'db-01\ndb-02\n' > /etc/fleet/groups/database.list
printf 'worker-01\nworker-02\nworker-03\n' > /etc/fleet/groups/batch.list
printf 'cpu_warn=70\ncpu_alarm=90\ndisk_warn=80\ndisk_alarm=95\n' > /etc/fleet/thresholds.conf

# --- one folder for each host -----------------------------------------------------------------
app_log() { # host, seed, day, lines
    awk -v host="$1" -v s="$2" -v day="$3" -v lines="$4" 'BEGIN {
        nl = split("INFO INFO INFO DEBUG DEBUG WARN ERROR INFO", level, " ")
        nc = split("api auth cache db mailer", part, " ")
        nm = split("request served|connection pool at half|slow answer from upstream|" \
            "try again after ERROR reply|session opened|token refreshed|queue drained|" \
            "WARN threshold not reached", text, "|")
        for (i = 0; i < lines; i++) {
            t = int(i * 86000 / lines) + r(200)
            l = level[1 + r(nl)]
            if (l == "ERROR" && host == "cache-01") l = "WARN"
            printf "2024-03-%02dT%02d:%02d:%02dZ %s %s: %s (%dms)\n", day, int(t / 3600),
                int(t % 3600 / 60), t % 60, l, part[1 + r(nc)], text[1 + r(nm)], 1 + r(900)
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
seed=100
for host in web-01 web-02 web-03 web-1 db-01 db-02 db-03 cache-01 queue-01 edge-01; do
    seed=$((seed + 31))
    mkdir "$top/hosts/$host"
    cd "$top/hosts/$host"
    app_log "$host" "$seed" 11 24 > app.log
    app_log "$host" "$((seed * 7))" 10 16 | gzip -n > app.log.1.gz
    awk -v host="$host" -v s="$seed" 'BEGIN {
        ns = split("root admin deploy backup git root oracle", user, " ")
        for (i = 0; i < 14; i++) {
            u = user[1 + r(ns)]; kind = r(5)
            if (kind < 2) what = "Failed password for " u
            else if (kind == 2) what = "Failed password for invalid user " u
            else if (kind == 3) what = "Accepted publickey for deploy"
            else what = "Connection closed by authenticating user " u
            printf "Mar 11 %02d:%02d:%02d %s sshd[%d]: %s from 203.0.113.%d port %d ssh2\n", i + 5, r(60),
                r(60), host, 900 + i, what, 1 + r(9), 20000 + r(9000)
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }' > auth.log
    awk -v host="$host" -v s="$seed" 'BEGIN {
        print "minute,cpu,mem,disk"
        for (i = 0; i < 40; i++) {
            cpu = 30 + r(60) - (host ~ /^db/ ? 20 : 0)
            if (host == "cache-01") cpu = 2 + r(9)
            printf "%02d:%02d,%s,%d,%d\n", int(i / 6), i % 6 * 10, r(8) == 0 ? "-" : cpu, 20 + r(70), 50 + r(40)
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }' > metrics.csv
done
cd "$top/hosts"
for host in web-01 web-02 web-03; do
    for day in 20240301 20240308; do
        printf 'kept messages of %s on %s\n' "$host" "$day" > "$host/messages.$day"
    done
done
printf 'kept messages, day unknown\n' > web-02/messages.old
printf 'cut short\n' > web-03/messages.2024031
printf 'notes on the format\n' > web-01/messages.20240301.txt
: > db-02/slow.log
: > queue-01/dead-letters.log
: > 'edge-01/reload trace.txt'
printf '\n' > web-01/notes.log
mkdir db-01/dumps web-03/cores

# --- the batch workers: jobs begin in one file and may end in the next --------------------------
worker_log() { printf '2024-03-%s INFO worker: job %s\n' "$@"; }
mkdir worker-01 worker-02 worker-03
worker_log 10T21:00:00Z '101 started by mira' 10T21:10:30Z '101 finished' 10T22:40:00Z '102 started by tomas' \
    10T23:50:00Z '103 started by mira' 10T23:58:20Z '104 started by yusuf' | gzip -n > worker-01/app.log.1.gz
worker_log 11T00:04:10Z '104 finished' 11T00:20:00Z '103 finished' 11T03:00:00Z '105 started by tomas' \
    11T03:01:15Z '105 finished' 11T09:30:00Z '106 started by yusuf' > worker-01/app.log
worker_log 10T20:15:00Z '102 started by yusuf' 10T20:45:00Z '102 finished' 10T23:10:00Z '103 started by tomas' \
    | gzip -n > worker-02/app.log.1.gz
worker_log 11T01:10:05Z '103 finished' 11T06:00:00Z '104 started by mira' 11T06:00:45Z '104 finished' \
    11T11:45:00Z '106 finished' > worker-02/app.log
worker_log 10T12:00:00Z '101 started by nadia' 10T19:30:00Z '102 started by nadia' 10T19:30:09Z '102 finished' \
    | gzip -n > worker-03/app.log.1.gz
worker_log 11T02:00:00Z '103 started by tomas' 11T02:30:00Z '103 finished' 11T12:00:01Z '101 finished' \
    > worker-03/app.log

# --- lines that were sent to one place by mistake -------------------------------------------------
cat > "$top/incoming/combined.log" <<'EOF'
web-01 2024-03-11T23:50:01Z INFO api: request served (12ms)
web-02 2024-03-11T23:50:02Z ERROR db: connection lost
web-1 2024-03-11T23:50:03Z INFO api: request served (9ms)
db-01 2024-03-11T23:50:04Z WARN db: checkpoint took long
garbage without any structure

web-01 2024-03-11 23:50:05 INFO api: clock in the old format
web-10 2024-03-11T23:50:06Z INFO api: request served (31ms)
db-03 2024-03-11T23:50:07Z INFO db: I am still here
queue-01 2024-03-11T23:50:08Z DEBUG cache: two  spaces  stay
web-02 2024-03-11T23:50:09Z error db: level in small letters
cache-01 2024-03-11T23:50:10Z WARN cache: evicting
web-01 2024-03-11T23:50:11Z FATAL api: not one of our levels
edge-01 2024-03-11T23:50:12Z INFO api: request served (5ms)
web-01 2024-03-11T23:50:13Z ERROR mailer: server refused
worker-02 2024-03-11T23:50:14Z INFO worker: job 105 started by nadia
EOF
cp worker-01/app.log /var/backups/fleet/worker-01.app.log.copy
gzip -dc web-03/app.log.1.gz > /var/backups/fleet/web-03.app.log.1
gzip -dc db-02/app.log.1.gz > /var/backups/fleet/db-02.app.log.1

find /etc/fleet /var/backups/fleet "$top" -exec touch -h -d '2024-03-12 07:00:00' {} +
touch -d '2023-11-20 12:00:00' web-1/app.log web-1/auth.log db-03/app.log db-03/metrics.csv
touch -d '2023-12-30 12:00:00' web-01/messages.20240301.txt /etc/fleet/thresholds.conf
touch -d '2024-01-02 12:00:00' db-03/auth.log
touch -h -d '2023-12-01 12:00:00' db-01/dumps
