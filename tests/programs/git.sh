# git: work in a repository; packs; then clones, by path and through the processes of a transport, fetch and push between them.
# needs: git
# timeout: 120
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_PAGER=cat HOME=$DIR
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
g() { $RUN git --no-pager "$@" 2>&1 || echo "status $?"; }
g init -q -b main .
g config maintenance.auto false; g config gc.auto 0; g config core.pager cat
g config --list | grep -v filemode
mkdir -p src/deep
for n in $(seq 200); do echo "file $n" > src/f$n; done
seq 1 3000 > src/deep/long; printf '\0binary\1' > src/binary; ln -s src/f1 link; echo '#!/bin/sh' > run; chmod +x run
echo '*.o' > .gitignore; touch ignored.o
g status --short | sed -n '1,3p'
g add .; g status --porcelain | wc -l
g commit -q -m 'first commit'
g status; g log --stat | tail -3; g rev-parse HEAD; g ls-files | wc -l; g ls-tree HEAD src/deep run link
echo changed >> src/f7; sed -i 's/^1500$/fifteen hundred/' src/deep/long; rm src/f9; mv src/f10 src/renamed; echo new > untracked
g status; g diff --stat; g diff src/f7 src/deep/long; g diff --name-status
g add -A; g diff --cached -M --stat; g commit -q -m second
g show --stat HEAD; g log --oneline --graph --decorate; g log -p -1 --format='%an %ad %s' --date=iso src/f7
g branch topic; g checkout -q topic; echo topic > topic; g add topic; g commit -q -m 'on topic'
g checkout main; g branch -a -v; test -e topic || echo 'no topic here'
g merge --ff-only topic; g log --oneline
g checkout -q -b other HEAD~1; echo other > other; g add other; g commit -q -m 'on other'
g checkout -q main
g tag v1; g tag -a v2 -m 'annotated'; g tag -l; g describe; g show v2 | sed -n '1,3p'; g cat-file -t v2; g cat-file -p HEAD^{tree} | sed -n '1,3p'
g merge-base main other; g rev-list --count main..other; g merge-tree $(git merge-base main other) main other | sed -n '1,5p'
g stash list; g reset -q --hard HEAD~1; g status -sb; g reflog; g blame -s src/f7; g grep -n --threads=1 changed; g shortlog -s HEAD
g mv src/f1 src/f1.moved; g rm -q src/f2; g restore --staged src/f2; g checkout src/f2; g clean -nd; g status --short
g archive --format=tar HEAD src/f3 | tar tvf - | awk '{ print $1, $3, $6 }'
g hash-object -w src/deep/long; g count-objects; g update-index --refresh; g write-tree; g for-each-ref; g symbolic-ref HEAD
git rev-list --objects --all | g pack-objects --threads=2 -q pack; g index-pack --verify-stat-only pack-*.pack | sed -n 1,3p; g prune-packed
mv pack-*.pack pack-*.idx .git/objects/pack/; g prune-packed; g unpack-objects -n < .git/objects/pack/*.pack > /dev/null; g multi-pack-index write; g commit-graph write
rm .git/objects/info/commit-graph; g log --oneline other | wc -l; g cat-file --batch-check --batch-all-objects | wc -l
git fsck --strict > /dev/null 2>&1 && echo 'whole, says git on the host'
g format-patch -1 --stdout | sed -n '1,5p'; g apply --check /dev/null; g nosuch; g -C nowhere status; g checkout nosuchbranch
# What follows runs other processes of git's: packing, sending and receiving.
counts() { g -C "$1" count-objects -v | grep -v size; g -C "$1" fsck --full --strict --no-progress; }
g clone -q . path; g clone -q --no-local -b other --depth 1 "file://$DIR" shallow; g clone -q --bare "file://$DIR" bare.git
g -C path log --oneline --all --graph | sed "s/^/  /"; g -C path status -sb; g -C shallow log --oneline --decorate; g -C bare.git branch -v
# An object that two share has two names.
find path/.git/objects -type f -links 2 | wc -l
g -C shallow fetch -q --unshallow; g -C shallow rev-list --count HEAD; counts shallow
p() { g -C path "$@"; }
p remote -v; p remote add bare "$DIR/bare.git"; p remote set-url origin "file://$DIR"; p fetch bare; p remote show -n bare
for n in $(seq 60); do seq $n 400 > path/src/push$n; done
p add .; p commit -q -m 'to push'; p push bare main; p push --porcelain bare HEAD~1:refs/heads/old v2; p push -q -u bare main:new/topic; p push bare :old
p reset -q --hard HEAD~1; echo differs > path/differs; p add .; p commit -q -m differs
p push bare main; p push --force-with-lease bare main; p push --atomic --mirror "file://$DIR/bare.git"; p ls-remote bare
# What is pushed is seen by hooks, which may refuse it.
printf '#!/bin/sh\nwhile read old new ref; do echo "received $ref"; case $ref in *forbidden) exit 1;; esac; done\n' > bare.git/hooks/pre-receive
printf '#!/bin/sh\necho "updated $*"\n' > bare.git/hooks/post-update; chmod +x bare.git/hooks/*-*e
p push bare main:refs/heads/forbidden; p push bare main:refs/heads/allowed
g fetch -q "file://$DIR/bare.git" 'refs/heads/*:refs/remotes/bare/*'; g log --oneline bare/allowed | sed -n 1,2p
g pull -q --no-rebase --no-edit ./path main; g log --oneline --graph | sed -n 1,4p
g -C shallow pull -q --rebase "$DIR" main; g -C shallow status -sb
g gc -q --prune=now; counts .; g -C bare.git gc -q --aggressive --prune=now; counts bare.git; g repack -adfq --window=20; counts .
g bundle create -q all.bundle --all; g clone -q all.bundle bundled; g -C bundled rev-list --all --count; g bundle verify -q all.bundle
g worktree add -q aside topic; ls aside | sed -n 1,3p; g worktree list | awk '{ print $2, $3 }'; g submodule status
p bisect start HEAD HEAD~2; p bisect run sh -c 'test ! -e differs' | grep -c 'first bad commit'
GIT_SEQUENCE_EDITOR='sed -i s/^pick/reword/' GIT_EDITOR='sed -i 1s/$/,reworded/' g -C bundled rebase -q -i --root | grep reworded; g -C bundled log --format=%s | sed -n 1,3p
# A pack that is damaged is found out.
pack=$(echo bare.git/objects/pack/*.pack); chmod u+w "$pack"; printf XXXX | dd of="$pack" bs=1 seek=2000 conv=notrunc status=none
g -C bare.git fsck --no-progress | grep -o 'status [1-9]\|pack checksum mismatch'
g clone -q --no-local bare.git none | grep -ao 'status [0-9]*'; test -e none || echo 'none left'
rm -rf .git path shallow bare.git bundled aside all.bundle
