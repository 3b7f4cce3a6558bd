#!/bin/bash
# A small web shop: settings, products, orders, web logs, releases and backups.
# Run once as root in an empty Debian-like root. No clock, no randomness, no network.
set -eu
umask 022
export LC_ALL=C TZ=UTC0
top=/srv/shop
mkdir -p "$top"
cd "$top"
mkdir -p config/features.d data/orders logs public/css public/img bin/cron cache/pages/a cache/pages/b \
    cache/keep.tmp cache/thumbs uploads run backup/releases backup/offsite \
    releases/1.3.9 releases/1.4.1 releases/1.4.2 releases/1.10.0

# --- settings -------------------------------------------------------------------------------
cat > config/shop.ini <<'EOF'
; main settings of the shop
[web]
listen = 0.0.0.0
port = 8080
timeout = 30
# timeout = 30 was chosen after the spring sale

[payment]
provider = paywell
retries = 3
# timeout = 30
timeout = 30
currency = EUR

[database]
host = db.internal
port = 5432
timeout = 30

[mail]
from = orders@shop.example
port = 25
EOF
cat > config/database.env <<'EOF'
DB_USER=shop
DB_PASSWORD=correct-horse
DB_NAME=shop_live
EOF
printf 'enabled = yes\nengine = trigram\n' > config/features.d/10-search.conf
printf 'enabled = no\nmax_items = 40\n' > config/features.d/20-cart.conf
printf 'enabled = yes\nqueue = outgoing\n' > config/features.d/30-mail.conf
printf '# enabled = yes\nenabled = no\n' > config/features.d/40-coupons.conf
printf 'enabled = yes\n' > config/features.d/50-legacy.conf.disabled
printf 'Files that end in .conf are read in order. Set enabled = yes to switch one on.\n' \
    > config/features.d/README

# --- products and customers -----------------------------------------------------------------
cat > data/products.csv <<'EOF'
product_id,name,category,price_cents,stock
p01,Walnut bowl,kitchen,3490,12
p02,Linen towel,kitchen,1295,80
p03,Cast iron pan,kitchen,5900,0
p04,Bread knife,kitchen,2750,31
p05,Reading lamp,lighting,4400,9
p06,Paper lantern,lighting,1150,0
p07,Desk clock,office,2899,14
p08,Brass pen,office,3600,22
p09,Notebook A5,office,780,240
p10,Notebook A4,office,990,175
p11,Letter tray,office,1890,0
p12,Wool blanket,textiles,8900,6
p13,Cotton rug,textiles,6450,3
p14,Cushion cover,textiles,1650,58
p15,Herb planter,garden,2140,17
p16,Watering can,garden,2595,10
p17,Seed box,garden,1375,44
p18,Wall hook,hallway,640,130
p19,Umbrella stand,hallway,4999,5
p20,Door mat,hallway,2250,27
p21,Shoe rack,hallway,5480,2
p22,Candle set,lighting,1725,66
EOF
cp data/products.csv data/products.csv.bak
printf 'p23,Old teapot,kitchen,1999,0\n' >> data/products.csv.bak
{
    printf 'customer_id\tname\tcountry\temail\n'
    printf 'c01\tAda Brandt\tDE\tada.brandt@mail.example\n'
    printf 'c02\tBo Lindqvist\tSE\tBo.Lindqvist@mail.example\n'
    printf 'c03\tClara Moreau\tFR\tclara@moreau.example\n'
    printf 'c04\tDiego Ruiz\tES\tdiego.ruiz@post.example\n'
    printf 'c05\tElla Novak\tCZ\tella@novak.example\n'
    printf 'c06\tFarid Haddad\tFR\tfarid.h@post.example\n'
    printf 'c07\tBo Lindqvist\tSE\tbo.lindqvist@mail.example\n'
    printf 'c08\tGreta Olsen\tNO\tgreta@olsen.example\n'
    printf 'c09\tHugo Peeters\tBE\thugo.peeters@mail.example\n'
    printf 'c10\tIda Virtanen\tFI\tida@virtanen.example\n'
    printf 'c11\tClara Moreau-Petit\tFR\tCLARA@moreau.example\n'
    printf 'c12\tJan Kowalski\tPL\tjan.k@post.example\n'
    printf 'c13\tKatya Ivanova\tDE\tkatya@ivanova.example\n'
    printf 'c14\tBo L.\tSE\tBO.LINDQVIST@MAIL.EXAMPLE\n'
    printf 'c15\tLuis Costa\tPT\tluis.costa@mail.example\n'
} > data/customers.tsv
for month in 01 02 03 04 05 06; do
    awk -v month="$month" 'BEGIN {
        s = 1000 + month * 77
        split("paid paid paid paid unpaid refunded cancelled", status, " ")
        note[0] = ""; note[1] = "gift wrap"; note[2] = "refunded an earlier order"
        note[3] = "paid in cash at the door"; note[4] = ""; note[5] = "leave with neighbour"; note[6] = ""
        print "order_id,date,customer_id,product_id,quantity,status,note"
        day = 1
        for (i = 1; i <= 46; i++) {
            if (i % 5 == 0) day += 2 + r(2)
            printf "o%s%03d,2023-%s-%02d,c%02d,p%02d,%d,%s,%s\n", month, i, month, day,
                1 + r(15), 1 + r(22), 1 + r(5), status[1 + r(7)], note[r(7)]
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }' > "data/orders/2023-$month.csv"
done
cp data/orders/2023-03.csv data/orders/2023-03.csv.bak

# --- web logs -------------------------------------------------------------------------------
web_log() { # seed, lines, day of June
    awk -v s="$1" -v lines="$2" -v day="$3" 'BEGIN {
        np = split("/ /cart /product/7 /product/12 /errors/404 /help /img/logo.png /product/404 " \
            "/search?q=lamp /old/catalogue /search?q=red+rug", path, " ")
        ns = split("200 200 200 200 304 404 404 500", code, " ")
        for (i = 0; i < lines; i++) {
            p = path[1 + r(np)]
            if (r(9) == 0) p = "/search?q=door mat"
            size = r(11) == 0 ? 404 : 200 + r(9000)
            t = int(i * 86400 / lines)
            printf "10.20.%d.%d - - [%02d/Jun/2023:%02d:%02d:%02d +0000] \"GET %s HTTP/1.1\" %s %d\n",
                r(3), 10 + r(5), day, int(t / 3600), int(t % 3600 / 60), t % 60, p, code[1 + r(ns)], size
        }
    }
    function r(n) { s = (s * 16807) % 2147483647; return s % n }'
}
web_log 4242 160 14 > logs/access.log
web_log 555 120 13 > logs/access.log.1
web_log 90210 90 12 | gzip -n > logs/access.log.2.gz
cat > logs/error.log <<'EOF'
2023-06-14 02:10:44 warning mail: server did not answer, will try again
2023-06-14 06:32:01 error payment: provider paywell timed out after 30 s
2023-06-14 09:15:27 error search: index is older than the catalogue
2023-06-14 17:48:30 notice cart: 12 abandoned carts removed
EOF

# --- what the web server shows ----------------------------------------------------------------
fill() { head -c "$1" /dev/zero | tr '\0' "$2"; }
cat > public/index.html <<'EOF'
<!doctype html>
<html>
<head><title>Shop</title><link rel="stylesheet" href="/css/main.css"></head>
<body>
<img src="/img/logo.png" alt="logo">
<img src="/img/banner.png" alt="banner">
<a href="/help.html">Help</a>
<a href="http://shop.example/cart">Cart</a>
<a href="http://static.shop.example/terms.pdf">Terms</a>
</body>
</html>
EOF
printf '<!doctype html>\n<p>Write to <a href="http://shop.example/contact">us</a> or http://shop.example.\n' > public/help.html
printf 'body { margin: 0 }\n' > public/css/main.css
printf '@media print { nav { display: none } }\n' > public/css/print.css
fill 3000 l > public/img/logo.png
fill 3001 b > public/img/banner.png
fill 3071 h > public/img/hero.png
fill 6200 m > public/img/map.png
fill 900 i > public/img/icon.png

# --- programs ---------------------------------------------------------------------------------
printf '#!/bin/bash\necho "starting the shop"\n' > bin/start.sh
printf '#!/bin/bash\necho "stopping the shop"\n' > bin/stop.sh
printf '#!/bin/bash\nrm -f /srv/shop/cache/pages/*/*.tmp\n' > bin/cron/tidy.sh
printf '#!/bin/bash\ntar -czf /srv/shop/backup/nightly.tar.gz -C /srv/shop data\n' > bin/cron/nightly.sh
printf 'shared functions; read with "source", not run\n' > bin/functions.inc
printf 'start.sh and stop.sh are run by hand, cron/ by the clock.\n' > bin/README
chmod 755 bin/start.sh
chmod 700 bin/cron/nightly.sh

# --- cache and uploads ------------------------------------------------------------------------
for n in 1 2 3; do
    printf 'page %s\n' "$n" > "cache/pages/a/page$n.html"
    printf 'half of page %s' "$n" > "cache/pages/b/page$n.tmp"
done
printf 'unfinished\n' > cache/upload.tmp
printf 'needed by the renderer\n' > cache/keep.tmp/fonts.txt
printf 'thumbnail\n' > 'cache/thumbs/bowl small.tmp'
printf 'thumbnail\n' > cache/thumbs/bowl.tmp.png
ln -s ../public/img/icon.png cache/thumbs/icon.tmp
printf 'invoice 17\n' > 'uploads/invoice 17.txt'
printf 'invoice 18\n' > 'uploads/invoice 18 (copy).txt'
printf 'photo\n' > uploads/lamp.jpg
printf 'remarks\n' > uploads/-remarks.txt

# --- releases and backups -----------------------------------------------------------------------
for v in 1.3.9 1.4.1 1.4.2 1.10.0; do
    mkdir -p build/app/templates
    printf 'shop %s\n' "$v" > build/app/VERSION
    printf 'routes of %s\n/\n/cart\n/help\n' "$v" > build/app/routes.txt
    printf '<h1>Shop %s</h1>\n' "$v" > build/app/templates/home.html
    find build -exec touch -d '2023-05-02 10:00:00' {} +
    tar --sort=name --owner=0 --group=0 --numeric-owner -cf - -C build app | gzip -n > "releases/$v/app.tar.gz"
    printf '%s\n' "$v" > "releases/$v/RELEASE"
    rm -r build
done
ln -s releases/1.4.1 current
ln -s releases/1.3.9 previous
cp releases/1.4.1/app.tar.gz backup/releases/app-1.4.1.tar.gz
cp releases/1.4.2/app.tar.gz backup/releases/app-1.4.2.tar.gz
(cd backup/releases && sha256sum app-1.4.1.tar.gz app-1.4.2.tar.gz > SHA256SUMS)
cp backup/releases/app-1.4.2.tar.gz backup/offsite/app-1.4.2.tar.gz

find "$top" -exec touch -h -d '2023-06-15 08:00:00' {} +
