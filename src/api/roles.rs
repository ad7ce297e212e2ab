//! Owns: who is at the other end of a socket: peer credentials and the groups of that user (OPS-02).
//! May call: core roles, the system's user and group files.
//! Never: decide what a role may do; believe anything that the caller says about itself.

use crate::core::lifecycle::Actor;
pub use crate::core::roles::{Permission, Role, RoleRule, Roles, Who};
use std::fs::File;
use std::io::Read as _;
use tokio::net::UnixStream;

/// Most bytes read of `/etc/passwd` and `/etc/group`.
const USER_FILE_BYTES_MAX: u64 = 1 << 20;
/// Most groups kept with an actor; it is written into histories.
pub const GROUPS_COUNT_MAX: usize = 64;

/// Who is at the other end (`SO_PEERCRED`), with all the groups the system gives that user.
///
/// # Errors
/// The kernel does not say.
pub fn peer(stream: &UnixStream) -> std::io::Result<Actor> {
    let credentials = stream.peer_cred()?;
    let (uid, gid) = (credentials.uid(), credentials.gid());
    let users = read_bounded("/etc/passwd");
    let groups = read_bounded("/etc/group");
    Ok(Actor::Uid {
        uid,
        gids: groups_of(uid, gid, &users, &groups),
    })
}

/// The id of a group by its name, for configuration.
#[must_use]
pub fn gid_of(name: &str) -> Option<u32> {
    gid_in(name, &read_bounded("/etc/group"))
}

fn gid_in(name: &str, groups: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next()? == name).then(|| parts.nth(1)?.parse().ok())?
    })
}

fn read_bounded(path: &str) -> String {
    let mut bytes = Vec::new();
    // A system without the file has no supplementary groups to give.
    if let Ok(file) = File::open(path) {
        let _ = file.take(USER_FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `gid` first, then the user's own group and those that list it as a member.
fn groups_of(uid: u32, gid: u32, users: &str, groups: &str) -> Vec<u32> {
    let mut found = vec![gid];
    let user = users.lines().find_map(|line| {
        let parts: Vec<&str> = line.split(':').collect();
        let [name, _, id, own, ..] = parts.as_slice() else {
            return None;
        };
        (id.parse() == Ok(uid)).then(|| ((*name).to_owned(), own.parse::<u32>().ok()))
    });
    let Some((name, own)) = user else {
        return found;
    };
    found.extend(own);
    for line in groups.lines() {
        let parts: Vec<&str> = line.split(':').collect();
        if let [_, _, id, members] = parts.as_slice()
            && members.split(',').any(|member| member == name)
            && let Ok(id) = id.parse()
        {
            found.push(id);
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|id| seen.insert(*id));
    found.truncate(GROUPS_COUNT_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: OPS-02
    #[test]
    fn a_user_has_its_own_group_and_those_that_list_it() {
        let users = "root:x:0:0::/:\nanna:x:1000:100:Anna:/home/anna:/bin/sh\n";
        let groups =
            "users:x:100:\nline:x:50:bert,anna\nhmi:x:51:bert\nodd line\nannas:x:52:annab\n";
        assert_eq!(groups_of(1000, 7, users, groups), [7, 100, 50]);
        assert_eq!(groups_of(1000, 100, users, groups), [100, 50]);
        assert_eq!(groups_of(4242, 9, users, groups), [9]);
        assert_eq!(gid_in("line", groups), Some(50));
        assert_eq!(gid_in("odd line", groups), None);
    }

    // covers: OPS-02
    #[tokio::test]
    async fn the_kernel_says_who_is_at_the_other_end() {
        let (one, _other) = UnixStream::pair().unwrap();
        let Actor::Uid { uid, gids } = peer(&one).unwrap() else {
            panic!("not a local user");
        };
        assert_eq!(uid, rustix::process::getuid().as_raw());
        assert_eq!(gids[0], rustix::process::getgid().as_raw());
    }
}
