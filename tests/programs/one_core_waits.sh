# While a thread waits for the host's pipe or FIFO, the others of a cell with one core go on.
# needs: python3
# options: --cores 1
cat > waits.py <<'END'
import os, threading
count, over = 0, False
def counts():
    global count
    while not over:
        count += 1
threading.Thread(target=counts).start()
for _ in range(2):
    before = count
    said = os.read(0, 9)
    print(said, "the other one counted:", count - before > 10000)
over = True
END
{ sleep 1; echo one; sleep 1; } | $RUN python3 waits.py
mkfifo fifo
{ sleep 1; echo one; sleep 1; echo two; } > fifo &
$RUN python3 waits.py < fifo
wait
