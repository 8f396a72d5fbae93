# git on a repository of its own, with the commands that need no second process.
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
rm -rf .git
