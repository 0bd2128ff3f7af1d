# The part of a remote box that runs inside of it: `sh box.sh ROOT OPERATION ...`, with nothing but sh and small tools.
#
# It runs programs with a deadline, separate capped outputs and an end of the whole tree, moves files, and tells what is
# there. Whoever calls it parses what it prints; nothing a program writes ever lands among those words, since outputs
# travel as base64. A command has a number, and the directory that is made for it is the claim: a request that arrives
# twice runs once, and a command that was called off before it arrived never runs.
# Programs belong to a box by the mark in the environment they are started with, or by descent from one that has it.
set -u
root=$1 op=$2
shift 2
control=$root/control

# Names a file with what is looked for in command lines, too; empty where only programs are hunted.
carriers=

# The ids of live processes that carry the mark $1, the program of the command in $2, and all that descend from them.
hunt() {
    hunted=" "
    if [ -n "$2" ] && { read -r first < "$2/pid"; } 2>/dev/null && { read -r boss < "$2/boss"; } 2>/dev/null; then
        line=
        { read -r line < "/proc/$first/stat"; } 2>/dev/null
        set -- "$1" "$2" ${line##*)}
        case ${3:-X} in [ZX]) ;; *) [ "${4:-}" = "$boss" ] && hunted=" $first " ;; esac
    fi
    for place in $(
        grep -lsF "ROLLWRIGHT_BOX=$1" /proc/[0-9]*/environ
        [ -z "$carriers" ] || grep -lsF -f "$carriers" /proc/[0-9]*/cmdline
    ); do
        place=${place#/proc/}
        hunted="$hunted${place%%/*} "
    done
    grown=$hunted
    while [ "$grown" != " " ]; do
        grown=" "
        for place in /proc/[0-9]*/stat; do
            line=
            { read -r line < "$place"; } 2>/dev/null || continue
            pid=${line%% *}
            set -- ${line##*)}
            case $hunted in *" $pid "*) continue ;; esac
            case ${1:-X} in [ZX]) continue ;; esac
            case $hunted in *" $2 "*) grown="$grown$pid " hunted="$hunted$pid " ;; esac
        done
    done
}

# End all that `hunt` finds, and see that nothing is found any more.
strike() {
    tries=0
    while hunt "$1" "$2"; [ "$hunted" != " " ]; do
        [ "$tries" -lt 200 ] || return 1
        [ "$tries" -eq 0 ] || sleep 0.05
        for pid in $hunted; do kill -9 "$pid"; done 2>/dev/null
        tries=$((tries + 1))
    done
}

# Call "$@" in $1 seconds, unless the caller sends TERM to this subshell first.
later() {
    before=$!  # Until the sleep begins, the last child is one of the parent's.
    trap '[ "$!" = "$before" ] || kill "$!"; exit 0' TERM
    sleep "$1" &
    wait "$!"
    trap '' TERM
    shift
    "$@"
}

expire() {
    : > "$at/late"
    strike "$mark" "$at"
}

# Keep $limit bytes of the stream $1 and count the rest. The `cat` in between can be killed without losing what it read.
collect() {
    mkfifo "$at/$1" "$at/$1.through"
    cat < "$at/$1" > "$at/$1.through" &
    eval "cat_$1=$!"
    { head -c "$limit" > "$at/$1.kept"; wc -c > "$at/$1.dropped"; } < "$at/$1.through" &
    eval "count_$1=$!"
}

# Whether the box still belongs to the user who sent this: a request that was late on its way must not reach the next.
welcome() {
    read -r token < "$control/token" && [ "$token" = "${mark%%/*}" ]
}

# Become the program. The id is written before the order to stop is looked at, and the order is given before the id is
# looked for: one of the two is always seen.
become() {
    read -r me rest < /proc/self/stat
    echo "$me" > "$at/pid"
    [ ! -e "$at/stop" ] && welcome || exit 137
    cd "$cwd" || exit 126
    unset RW_STDIN RW_DATA RW_HELLO
    for name in $names; do
        eval "export $name=\"\$RWE_$name\""
        unset "RWE_$name"
    done
    export ROLLWRIGHT_BOX="$mark"
    exec "$@"
}

report() {
    ended=end
    [ ! -e "$at/late" ] || ended=late
    {
        echo "rollwright $number $ended $code $(cat "$at/o.dropped" 2>/dev/null || echo 0) $(cat "$at/e.dropped")"
        [ ! -e "$at/o.kept" ] || base64 < "$at/o.kept"
        echo "-"
        base64 < "$at/e.kept"
        echo "."
    } > "$at/report.new"
    mv "$at/report.new" "$at/report"
    rm -f "$at/o.kept" "$at/e.kept" "$at/input"
}

# Say why there is no program, where the report of one would be: stdout of one that is talked to is its own.
answer() {
    if [ "$op" = open ]; then echo "$1" >&2; else echo "$1"; fi
    exit 0
}

# NUMBER MARK LIMIT SECONDS CWD NAMES FORGET PROGRAM...; SECONDS is empty for a program that is talked to.
claim() {
    number=$1 mark=$2 limit=$3 seconds=$4 cwd=$5 names=$6 at=$control/$1
    for old in $7; do rm -rf "${control:?}/$old"/*; done
    welcome && mkdir "$at" 2>/dev/null || answer "rollwright again"
    if [ ! -d "$cwd" ]; then
        echo "rollwright nowhere" > "$at/report"
        answer "rollwright nowhere"
    fi
    echo "$$" > "$at/boss"
    export HOME="$root/home" TMPDIR="$root/tmp"
    collect e
}

# Whether every process in "$@" waits for something to read: it has then passed on all that was written before.
idle() {
    for pid in "$@"; do
        at_call="S 0x0" line=
        { read -r line < "/proc/$pid/stat"; } 2>/dev/null || continue
        { read -r call first_word rest < "/proc/$pid/syscall" && at_call="$call $first_word"; } 2>/dev/null
        set -- ${line##*)}
        case "$1 $at_call" in S\ *\ 0x0) ;; *) return 1 ;; esac
    done
}

# Kill the pumps in "$@" once they have nothing left to carry: what holds their pipes open now is no longer waited for.
cut_off() {
    tries=0
    until idle "$@" || [ "$tries" -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    kill "$@"
}

# The pipes hold all of what the program wrote when it ended. Children that keep them open are heard for a moment.
settle() {
    later 0.1 cut_off "$@" < /dev/null > /dev/null 2>&1 &
    ender=$!
    wait $waited
    kill "$ender"
} 2>/dev/null

do_run() {
    claim "$@"
    shift 7
    input=/dev/null
    if [ -e "$control/$number.stdin" ]; then
        mv "$control/$number.stdin" "$at/input"
        input=$at/input
    elif [ -n "${RW_STDIN:-}" ]; then
        printf %s "$RW_STDIN" | base64 -d > "$at/input"
        input=$at/input
    fi
    collect o
    later "$seconds" expire < /dev/null > /dev/null 2>&1 &
    watcher=$!
    (become "$@") < "$input" > "$at/o" 2> "$at/e"
    code=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null
    waited="$count_o $count_e"
    settle "$cat_o" "$cat_e"
    report
    cat "$at/report"
}

# Lines of standard input are pieces of the program's: "=" and text with escapes. A "." is the end of it.
feed() {
    while IFS= read -r line && [ "$line" != . ]; do printf %b "${line#=}"; done
}

do_open() {
    claim "$@"
    shift 7
    # Whoever asks to be told when the command is claimed does not call it off before it is there.
    [ -z "${RW_HELLO:-}" ] || echo "rollwright began"
    mkfifo "$at/o" "$at/i"
    exec 3<&0
    feed <&3 > "$at/i" 2>/dev/null &
    feeder=$!
    cat < "$at/o" &
    cat_o=$!
    (exec 3<&-; become "$@") < "$at/i" > "$at/o" 2> "$at/e"
    code=$?
    waited="$cat_o $count_e"
    settle "$cat_o" "$cat_e"
    kill "$feeder" 2>/dev/null
    report
    cat "$at/report" >&2
}

# NUMBER MARK: end a command with all its children, also one that has not begun.
do_kill() {
    at=$control/$1
    if mkdir "$at" 2>/dev/null; then
        printf 'rollwright %s end 137 0 0\n-\n.\n' "$1" > "$at/report"
        echo "rollwright gone"
        exit 0
    fi
    : > "$at/stop"
    if strike "$2" "$at"; then echo "rollwright gone"; else echo "rollwright survived"; fi
}

# NUMBER SECONDS: the report of a command whose answer was lost on the way.
do_fetch() {
    at=$control/$1 tries=$2
    [ -d "$at" ] || { echo "rollwright unknown"; exit 0; }
    until [ -e "$at/report" ]; do
        [ "$tries" -gt 0 ] || { echo "rollwright running"; exit 0; }
        tries=$((tries - 1))
        sleep 1
    done
    cat "$at/report"
}

do_read() {
    [ -e "$1" ] || { echo "rollwright refused no such file"; exit 0; }
    [ -f "$1" ] && [ -r "$1" ] || { echo "rollwright refused not a readable file"; exit 0; }
    size=$(wc -c < "$1")
    [ "$size" -le "$2" ] || { echo "rollwright refused $((size)) bytes are over the limit of $2"; exit 0; }
    echo "rollwright file"
    base64 < "$1"
    echo "."
}

# PATH UPLOADED: the content is in RW_DATA, or in a file that was uploaded.
do_write() {
    if [ -e "$1" ] && [ ! -f "$1" ]; then echo "rollwright refused not a file"; exit 0; fi
    if why=$(mkdir -p "$(dirname "$1")" 2>&1 && put "$@" 2>&1); then
        echo "rollwright written"
    else
        echo "rollwright refused $why"
    fi
}

put() {
    if [ -n "$2" ]; then cat "$2" > "$1" && rm -f "$2"; else printf %s "${RW_DATA:-}" | base64 -d > "$1"; fi
}

# TOKEN: whose programs are welcome.
do_make() {
    mkdir -p "$root/home" "$root/tmp" "$root/workspace" && echo "$1" > "$control/token" && : > "$control/carriers" &&
        echo "rollwright made"
}

# OLD NEW: end every program whose mark begins with OLD, and make the directories anew for those of NEW. What passed the
# gate just before it closed is caught by the second strike. The shells that carry those programs have their marks among
# their words, and end with them: nobody hears their reports, and the next user would see them. The claims go as well:
# what is late on its way from the last user is turned away for its mark.
do_clear() {
    echo "$2" > "$control/token"
    carriers=$control/carriers
    echo "$1/" > "$carriers"
    strike "$1/" "" || { echo "rollwright survived"; exit 0; }
    chmod -R u+rwx "$root/workspace" "$root/home" "$root/tmp" "$root/warm" 2>/dev/null
    rm -rf "$root/workspace" "$root/home" "$root/tmp" "$root/warm" && mkdir "$root/workspace" "$root/home" "$root/tmp" &&
        rm -rf "$control"/[0-9]* "$control"/upload-* && strike "$1/" "" && echo "rollwright cleared"
}

# The places in "$@", and whatever is mounted below them and can be written: a search stays on one mount.
grounds() {
    for place in "$@"; do
        echo "$place"
        while read -r from to type options rest; do
            case $to in / | /proc | /proc/* | /sys | /sys/*) continue ;; esac
            case "$type $options" in devpts\ * | *\ ro | *\ ro,*) continue ;; esac
            case $to in "${place%/}"/*) printf '%b\n' "$to" ;; esac
        done < /proc/mounts
    done
}

# What `find "$@"` finds, in order: name, mode, owner, and of files also size and times, which no program can set all of.
# A directory's times are not told: whoever makes a file and takes it away has left nothing.
details() {
    find "$@" \( -type f -o -type l \) -exec stat -c "%n$tab%A %u %g %s %y %z" {} + -o \
        -exec stat -c "%n$tab%A %u %g %t %T" {} + 2>/dev/null | LC_ALL=C sort -u
}

# COUNT PLACE... LEFT_OUT...: what is in these places, as a number; and what has changed since this was asked first.
elsewhere() {
    now=$control/listing.$$ first=$control/listing count=$1
    shift
    while [ "$count" -gt 0 ]; do
        grounds "$1"
        count=$((count - 1))
        shift
    done > "$control/grounds.$$"
    left=$#
    set -- "$@" -xdev \( -path "$root"
    while [ "$left" -gt 0 ]; do
        set -- "$@" -o -path "$1"
        left=$((left - 1))
        shift
    done
    set -- "$@" \) -prune -o
    while IFS= read -r ground; do set -- "$ground" "$@"; done < "$control/grounds.$$"
    details "$@" > "$now"
    sum=$(cksum < "$now")
    [ -e "$first" ] || { cp "$now" "$first" && echo "$sum" > "$first.sum"; }
    echo "elsewhere $sum"
    # For the eye of whoever reads why a box was thrown away: the number alone decides.
    { read -r known_sum < "$first.sum"; } 2>/dev/null && [ "$sum" = "$known_sum" ] || tell_changes
    rm -f "$control/grounds.$$" "$now"
}

tell_changes() {
    LC_ALL=C sort "$first" "$now" | uniq -u | cut -f 1 | uniq | head -n 20 | while IFS= read -r name; do
        if [ -e "$name" ] || [ -L "$name" ]; then echo "changed $name"; else echo "changed $name (gone)"; fi
    done
}

# OWN COUNT PLACE... LEFT_OUT...: what one user could leave for the next. OWN are processes of the box, as pid:start.
do_inspect() {
    echo "rollwright state"
    tab=$(printf '\t') known=" $1 "
    shift
    [ "$1" -eq 0 ] || elsewhere "$@"
    find "$root/workspace" "$root/home" "$root/tmp" -exec stat -c 'file %A:%u:%g:%s:%Y %n' {} +
    # What is ours to know: our tools and the scripts that were brought here, and nothing else beside them.
    echo "tool $(cksum < "$control/box.sh")"
    echo "scripts $(details "$root/scripts" | cksum)"
    for name in "$root"/* "$root"/.[!.]* "$control"/* "$control"/.[!.]*; do
        case ${name#"$root"/} in workspace | home | tmp | scripts | control/listing* | control/grounds*) continue ;; esac
        case ${name##*/} in *[!0-9]*) ;; *) continue ;; esac
        if [ -e "$name" ] || [ -L "$name" ]; then echo "file ours $name"; fi
    done
    own=" $$ "
    for place in /proc/[0-9]*/stat; do
        line=
        { read -r line < "$place"; } 2>/dev/null || continue
        pid=${line%% *} name=${line#*(}
        set -- ${line##*)}
        case $own in *" $pid "* | *" $2 "*) own="$own$pid "; continue ;; esac
        case "$1 $2 $pid" in [ZX]\ * | *\ 2\ * | *\ 2) continue ;; esac
        case $known in *" $pid:${20} "*) continue ;; esac
        echo "process ${name%)*}"
    done
    for table in tcp tcp6 udp udp6; do
        while read -r slot here there state rest; do
            case "$table $state" in tcp*\ 0A | udp*\ 07) echo "port $table $here" ;; esac
        done < "/proc/net/$table"
    done 2>/dev/null
    for kind in shm sem msg; do
        while read -r key id mode rest; do
            [ "$key" = key ] || echo "file $mode:$key /proc/sysvipc/$kind/$id"
        done < "/proc/sysvipc/$kind"
    done 2>/dev/null
    while read -r from to type options rest; do echo "mount $type $to ${options%%,*}"; done < /proc/mounts
    env | grep '^[A-Za-z_][A-Za-z0-9_]*=' | grep -Ev '^(_|PWD|OLDPWD|SHLVL|RW_[A-Z]*|RWE_.*)=' | sed 's/^/variable /'
    echo "."
}

"do_$op" "$@"
