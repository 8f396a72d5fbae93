# needs: tmux dash coreutils procps
# timeout: 60
# tmux: a server with shells on terminals of their own, driven by commands; a client on a terminal that comes and goes.
cat > drive <<'EOF'
export TERM=xterm HOME=$PWD TMUX_TMPDIR=/tmp LC_ALL=C.UTF-8
tmux="tmux -L own -f /dev/null"
until_shows() {
	for _ in $(seq 200); do $tmux capture-pane -p -t "$1" | grep -q "$2" && return; sleep 0.05; done
	echo "nothing like $2"
}
$tmux new-session -d -s one -n first -x 80 -y 24 "PS1='> ' exec dash"
$tmux set-option -g automatic-rename off
# The shell has asked for its next line before that is typed, which the terminal would echo ahead of the prompt, and before the screen is compared.
until_shows one '^>$'
$tmux send-keys -t one 'echo $((6*7)) done' Enter
until_shows one '^42 done'
until_shows one '^>$'
$tmux send-keys -t one 'stty size' Enter
until_shows one '^24 80\|^23 80'
until_shows one '^>$'
$tmux capture-pane -p -t one | grep .
$tmux split-window -t one -h "PS1='% ' exec dash"
$tmux list-panes -t one -F '#{pane_index} #{pane_width}x#{pane_height}'
until_shows one '^%$'
$tmux send-keys -t one 'stty size; seq 100' Enter
until_shows one '^100'
until_shows one '^%$'
$tmux capture-pane -p -S - -t one | grep -c .
$tmux send-keys -t one 'echo sleeping; sleep 50' Enter
until_shows one '^sleeping'
for _ in $(seq 200); do [ "$($tmux display-message -p -t one '#{pane_current_command}')" = sleep ] && break; sleep 0.05; done
$tmux list-panes -t one -F '#{pane_index} #{pane_current_command}'
$tmux send-keys -t one C-c
until_shows one '^%$'
$tmux send-keys -t one 'echo "after $?"' Enter
until_shows one '^after 130'
$tmux new-window -t one -n second 'echo in second; exec sleep 100'
$tmux list-windows -t one -F '#{window_index} #{window_name} #{window_panes}'
$tmux set-buffer hello
$tmux show-buffer; echo
$tmux run-shell 'echo from run-shell'
$tmux if-shell true 'display-message -p yes' 'display-message -p no'
$tmux wait-for -S channel
$tmux wait-for channel && echo waited
# A client on a terminal.
script -qec "$tmux attach -t one" /dev/null < /dev/null > shown &
client=$!
for _ in $(seq 200); do [ -n "$($tmux list-clients)" ] && break; sleep 0.05; done
$tmux list-clients -F '#{client_session} #{client_termname}'
$tmux detach-client -s one
wait "$client"
echo "detached: $?"
grep -a -c 'detached (from session one)' shown
$tmux list-sessions -F '#{session_name} #{session_windows} #{session_attached}'
$tmux kill-pane -t one:first.1
$tmux list-windows -t one -F '#{window_index} #{window_name} #{window_panes}'
$tmux kill-server
# While it ends, who asks may also be told that it went.
for _ in $(seq 200); do $tmux list-sessions 2>&1 | grep -o 'no server running' && break; sleep 0.05; done
EOF
$RUN bash drive
rm -f drive shown
