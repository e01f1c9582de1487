# Run as `sh local_root.sh ROOT NEW_LOOPBACK PATH…` in new user, mount and PID namespaces: make ROOT the root folder,
# with the PATHs of this machine read-only in it, and wait until standard input ends, that is until the run does.
set -e
root=$1 loopback=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
for path in "$@"; do
    if [ -L "$path" ]; then
        mkdir -p "$root$(dirname "$path")"
        ln -s "$(readlink "$path")" "$root$path"
    elif [ -d "$path" ]; then
        mkdir -p "$root$path"
        mount --rbind "$path" "$root$path"
        mount -o remount,bind,ro,nosuid,nodev "$root$path"
    fi
done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t proc proc "$root/proc"
if [ -n "$loopback" ]; then "$loopback" -I -S -c '
import fcntl, socket, struct
with socket.socket() as any_socket:  # SIOCSIFFLAGS: up, running and loopback
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x49))
'; fi
cd "$root"
mkdir .old
pivot_root . .old
umount -l /.old
rmdir /.old
echo ready
# bash, unlike sh, collects the ended processes whose parents have ended, which the kernel gives to the first process.
exec bash -c 'read -r _; true'
