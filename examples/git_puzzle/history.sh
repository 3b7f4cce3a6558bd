# The history of a small project. Names and dates are fixed, so every commit has always the same
# hash: it is enough to compare hashes to know that files, authors and history are right.
set -eu
export GIT_AUTHOR_NAME=Lena GIT_AUTHOR_EMAIL=lena@example.invalid
export GIT_COMMITTER_NAME=Lena GIT_COMMITTER_EMAIL=lena@example.invalid

commit() { # DATE MESSAGE
    export GIT_AUTHOR_DATE="$1T12:00:00Z" GIT_COMMITTER_DATE="$1T12:00:00Z"
    git add --all
    git commit --quiet --no-gpg-sign --message "$2"
}

git init --quiet --initial-branch=main /srv/recipes
cd /srv/recipes
printf '#!/bin/sh\n! grep -rq salt cakes\n' > check && chmod 755 check
mkdir cakes
echo "apples, flour, sugar" > cakes/apple
commit 2023-11-05 "Apple cake"
echo "plums, flour, sugar" > cakes/plum
commit 2023-12-28 "Plum cake"
echo "pears, flour, salt" > cakes/pear
commit 2024-01-07 "Pear cake"
echo "apples, flour, sugar, cinnamon" > cakes/apple
commit 2024-01-09 "Cinnamon"
echo "cherries, flour, sugar" > cakes/cherry
commit 2024-02-01 "Cherry cake"
git reset --quiet --hard HEAD~1
