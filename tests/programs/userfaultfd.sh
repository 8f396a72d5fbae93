# needs: stress-ng
# options: --cores 2 --memory 512M
# timeout: 90
# A program's own pager, under load: threads that page each other's memory in, and see whether it is right (XOS-08).
faults() { awk '$4 == "userfaultfd" && $5 ~ /^[0-9]+$/ { print $4, $5 }'; }
$RUN stress-ng --userfaultfd 2 --userfaultfd-bytes 8M --userfaultfd-ops 20000 --verify --metrics-brief 2>&1 | faults
$RUN stress-ng --userfaultfd 2 --userfaultfd-bytes 1M --userfaultfd-ops 5000 --verify --metrics-brief 2>&1 | faults
