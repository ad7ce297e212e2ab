//! Owns: who may do what, as a pure table: roles, permissions, and the rules that give roles (OPS-02).
//! May call: lifecycle (for [`Actor`]).
//! Never: look up a user, a group or a token: callers bring an [`Actor`] that already says it.

use super::lifecycle::Actor;

/// What somebody may be, each more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks.
    Viewer,
    /// Submits and cancels.
    Operator,
    /// Says what happened where the gateway cannot know.
    Resolver,
    /// Everything.
    Admin,
}

impl Role {
    /// The name used in configuration and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Resolver => "resolver",
            Self::Admin => "admin",
        }
    }
    /// Reads the name used in configuration.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Resolver, Self::Admin]
            .into_iter()
            .find(|role| role.name() == name)
    }
    /// Whether this role includes `permission`.
    #[must_use]
    pub fn may(self, permission: Permission) -> bool {
        self >= permission.least_role()
    }
}

/// What is allowed separately (CMD-09).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Read anything, and ask queries that record nothing.
    Query,
    /// Submit an operation, do one again, or have one verified.
    Submit,
    /// Withdraw one.
    Cancel,
    /// Resolve an unknown outcome, or let a held operation go on.
    Resolve,
    /// Reload, settle dead letters.
    Administer,
}

impl Permission {
    /// The least role that includes it.
    #[must_use]
    pub fn least_role(self) -> Role {
        match self {
            Self::Query => Role::Viewer,
            Self::Submit | Self::Cancel => Role::Operator,
            Self::Resolve => Role::Resolver,
            Self::Administer => Role::Admin,
        }
    }
    /// Its name, for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Submit => "submit",
            Self::Cancel => "cancel",
            Self::Resolve => "resolve",
            Self::Administer => "administer",
        }
    }
}

/// Whom a rule means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// This user.
    Uid(u32),
    /// Members of this group.
    Gid(u32),
    /// The holder of this token, by its configured name.
    Token(String),
    /// The subject of this certificate.
    Certificate(String),
}

/// Gives a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRule {
    /// To whom.
    pub who: Who,
    /// Which.
    pub role: Role,
}

/// All rules. With none, the gateway's own user and root are admin, and nobody else is anything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Roles {
    /// As configured.
    pub rules: Vec<RoleRule>,
    /// The user the gateway runs as.
    pub own_uid: u32,
}

impl Roles {
    /// The highest role that any rule gives to `actor`; `None` if none does.
    #[must_use]
    pub fn role_of(&self, actor: &Actor) -> Option<Role> {
        if matches!(actor, Actor::Gateway) {
            return Some(Role::Admin);
        }
        if self.rules.is_empty() {
            return match actor {
                Actor::Uid { uid, .. } if *uid == 0 || *uid == self.own_uid => Some(Role::Admin),
                _ => None,
            };
        }
        self.rules
            .iter()
            .filter(|rule| rule.who.means(actor))
            .map(|rule| rule.role)
            .max()
    }
    /// Whether `actor` may.
    #[must_use]
    pub fn may(&self, actor: &Actor, permission: Permission) -> bool {
        self.role_of(actor).is_some_and(|role| role.may(permission))
    }
}

impl Who {
    fn means(&self, actor: &Actor) -> bool {
        match (self, actor) {
            (Self::Uid(rule), Actor::Uid { uid, .. }) => rule == uid,
            (Self::Gid(rule), Actor::Uid { gids, .. }) => gids.contains(rule),
            (Self::Token(rule), Actor::Token(name)) => rule == name,
            (Self::Certificate(rule), Actor::Certificate(cn)) => rule == cn,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gids: &[u32]) -> Actor {
        Actor::Uid {
            uid,
            gids: gids.to_vec(),
        }
    }

    // covers: CMD-09, OPS-02
    #[test]
    fn each_permission_begins_at_its_own_role() {
        let all = [
            Permission::Query,
            Permission::Submit,
            Permission::Cancel,
            Permission::Resolve,
            Permission::Administer,
        ];
        let allowed = |role: Role| -> Vec<&str> {
            all.iter()
                .filter(|p| role.may(**p))
                .map(|p| p.name())
                .collect()
        };
        assert_eq!(allowed(Role::Viewer), ["query"]);
        assert_eq!(allowed(Role::Operator), ["query", "submit", "cancel"]);
        assert_eq!(
            allowed(Role::Resolver),
            ["query", "submit", "cancel", "resolve"]
        );
        assert_eq!(allowed(Role::Admin).len(), 5);
    }

    // covers: OPS-02
    #[test]
    fn without_rules_only_root_and_the_gateways_own_user_are_anything() {
        let roles = Roles {
            rules: vec![],
            own_uid: 990,
        };
        assert_eq!(roles.role_of(&user(0, &[0])), Some(Role::Admin));
        assert_eq!(roles.role_of(&user(990, &[990])), Some(Role::Admin));
        assert_eq!(roles.role_of(&user(1000, &[0])), None);
        assert_eq!(roles.role_of(&Actor::Token("x".into())), None);
    }

    // covers: OPS-02
    #[test]
    fn with_rules_the_highest_that_matches_counts_and_root_gets_nothing_for_free() {
        let rule = |who, role| RoleRule { who, role };
        let roles = Roles {
            rules: vec![
                rule(Who::Gid(50), Role::Viewer),
                rule(Who::Uid(1000), Role::Resolver),
                rule(Who::Token("mes".into()), Role::Operator),
                rule(Who::Certificate("hmi".into()), Role::Viewer),
            ],
            own_uid: 990,
        };
        assert_eq!(
            roles.role_of(&user(1000, &[1000, 50])),
            Some(Role::Resolver)
        );
        assert_eq!(roles.role_of(&user(1001, &[1001, 50])), Some(Role::Viewer));
        assert_eq!(roles.role_of(&user(0, &[0])), None);
        assert_eq!(
            roles.role_of(&Actor::Token("mes".into())),
            Some(Role::Operator)
        );
        assert_eq!(roles.role_of(&Actor::Token("hmi".into())), None);
        assert_eq!(
            roles.role_of(&Actor::Certificate("hmi".into())),
            Some(Role::Viewer)
        );
        assert_eq!(Role::parse("admin"), Some(Role::Admin));
        assert_eq!(Role::parse("root"), None);
    }
}
