#!/bin/bash
# The small file system of the Bash quick start: texts, scripts and data in three folders.
set -eu
umask 022
cd /
mkdir -p testbed/dir1/subdir1/subsubdir1 testbed/dir1/subdir2 testbed/dir2/subdir1 \
    testbed/dir2/subdir2/subsubdir1 testbed/dir3/subdir1/subsubdir1 testbed/dir3/subdir2
cd testbed

number=1
for file in dir1/textfile1 dir2/subdir1/textfile2 dir3/subdir1/subsubdir1/textfile3 \
    dir1/subdir1/textfile4 dir2/subdir2/textfile5 dir3/textfile6
do
    seq -f "Hello from line %g of text file $number" "$((number + 2))" > "$file.txt"
    number=$((number + 1))
done

number=1
for file in dir1/subdir1/shellscript1 dir2/shellscript2 dir3/subdir1/subsubdir1/shellscript3
do
    printf '#!/bin/sh\necho "script %d ran"\n' "$number" > "$file.sh"
    printf 'print("program %d ran")\n' "$number" > "${file/shell/python}.py"
    chmod 755 "$file.sh"
    number=$((number + 1))
done

printf '{"key1": "value1", "key2": [2, 22],\n "key3": "value3"}\n' > dir1/subdir1/jsonfile1.json
printf 'name,size\napple,3\npear,4\nplum,2\n' > dir3/subdir2/csvfile1.csv
