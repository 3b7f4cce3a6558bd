# Lists the files that count: each with its type, mode and owner; hashes; the targets of links.
# In the folder $1: "trees", whose content counts, "paths", which count alone, and "free", patterns
# of those that do not count.
export LC_ALL=C
mapfile -t trees <"$1/trees"
mapfile -t paths <"$1/paths"
mapfile -t free <"$1/free"
skipped=(
    -name .bash_history -o -name .python_history -o -name .lesshst -o -name .viminfo
    -o -name .wget-hsts -o -name .sqlite_history
)
for pattern in "${free[@]}"; do skipped+=(-o -path "$pattern"); done
list() {
    find "$@" \( "${skipped[@]}" \) -prune -o -exec stat -c '%f %u %g %n' {} +
    find "$@" \( "${skipped[@]}" \) -prune -o -type f -exec sha256sum {} +
    find "$@" \( "${skipped[@]}" \) -prune -o -type l \
        -exec bash -c 'for link; do echo "$(readlink "$link") <- $link"; done' bash {} +
}
{
    [ ${#trees[@]} = 0 ] || list "${trees[@]}"
    [ ${#paths[@]} = 0 ] || list "${paths[@]}" -maxdepth 0
} 2>/dev/null | sort -u
