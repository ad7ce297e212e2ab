//! Owns: bringing a database to the schema of this version, and the rights of the roles that use it.
//! May call: target, books' connection, trouble.
//! Never: change a schema that is newer; leave half a schema; give a writer more than the ingest function.
//!
//! One transaction under an advisory lock: it is all there or nothing is, and two at once wait for each other. What
//! will be done is a list of statements made from what was found, so a dry run shows just what a run does.

use super::SCHEMA_VERSION;
use super::books::Books;
use super::target::Target;
use super::trouble::{Class, UpstreamError, mend, says};
use tokio_postgres::{Client, Error};

/// The schema, version by version: the first creates it, each later one leads there from the one before.
const VERSIONS: &[&str] = &[include_str!("schema_v1.sql")];
/// Views and functions of this version; may be applied again at any time.
const ROUTINES: &str = include_str!("routines.sql");
/// Least server version.
pub(super) const SERVER_VERSION_MIN: i32 = 150_000;
/// Names the advisory lock: "holdfast" as bytes.
const LOCK: i64 = 0x686f_6c64_6661_7374;
/// Who owns the schema if a superuser creates it and names nobody.
pub const OWNER_DEFAULT: &str = "holdfast_owner";
/// Who enters events, unless told otherwise.
pub const WRITER_DEFAULT: &str = "holdfast_writer";
/// Longest name of a role, in bytes, that PostgreSQL does not cut.
const ROLE_BYTES_MAX: usize = 63;

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Owns the schema; no login. `None`: [`OWNER_DEFAULT`] if a superuser asks, else who asks.
    pub owner: Option<String>,
    /// May execute the ingest function, and nothing else.
    pub writer: String,
    /// May read everything.
    pub reader: Option<String>,
    /// Given to the writer, as a SCRAM verifier; the password itself does not leave this process.
    pub writer_password: Option<String>,
}

impl Default for Roles {
    fn default() -> Self {
        Self {
            owner: None,
            writer: WRITER_DEFAULT.into(),
            reader: None,
            writer_password: None,
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// In plain words.
    pub says: String,
    /// How.
    pub sql: String,
}

impl Step {
    fn new(says: impl Into<String>, sql: impl Into<String>) -> Self {
        Self {
            says: says.into(),
            sql: sql.into(),
        }
    }
}

/// What is there already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Who asks.
    user: String,
    is_superuser: bool,
    /// Owner of the schema, if it is there.
    owner: Option<String>,
    version: Option<i32>,
    /// Of the roles that are named, those there are.
    roles: Vec<String>,
}

/// Creates or updates the schema and the rights, unless `dry_run`; what was done, or would be.
///
/// # Errors
/// [`UpstreamError`]; then nothing was changed.
pub async fn init(
    target: &Target,
    roles: &Roles,
    dry_run: bool,
) -> Result<Vec<Step>, UpstreamError> {
    let books = Books::connect(target).await?;
    let failed = |error: Error| refused(books.place(), &error);
    let client = books.client();
    client.batch_execute("BEGIN").await.map_err(failed)?;
    client
        .batch_execute(&format!(
            "SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})"
        ))
        .await
        .map_err(failed)?;
    let found = look(client, roles).await?;
    let steps = plan(&found, roles)?;
    if dry_run {
        client.batch_execute("ROLLBACK").await.map_err(failed)?;
        return Ok(steps);
    }
    for step in &steps {
        client.batch_execute(&step.sql).await.map_err(|error| {
            let UpstreamError::Mend(text) = refused(books.place(), &error) else {
                return refused(books.place(), &error);
            };
            UpstreamError::Mend(format!("{}: {text}", step.says))
        })?;
    }
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(steps)
}

/// What a run on an empty database would do, for those who apply it by hand.
///
/// # Errors
/// [`UpstreamError::Mend`] for names that cannot be.
pub fn steps_from_nothing(roles: &Roles) -> Result<Vec<Step>, UpstreamError> {
    let found = Found {
        is_superuser: true,
        user: "postgres".into(),
        ..Found::default()
    };
    plan(&found, roles)
}

fn refused(place: &str, error: &Error) -> UpstreamError {
    let says = says(error);
    match error.as_db_error() {
        Some(server) if Class::of(server) == Class::Passes => {
            UpstreamError::Passing(format!("{place}: {says}; nothing was changed"))
        }
        Some(server) if server.code().code() == "42501" => UpstreamError::Mend(format!(
            "{place}: {says}; run this as the database's owner with CREATEROLE, or as a superuser; \
             nothing was changed"
        )),
        Some(server) => UpstreamError::Mend(format!(
            "{place}: {says}; {}; nothing was changed",
            mend(server)
        )),
        None => UpstreamError::Passing(format!("{place}: {says}")),
    }
}

async fn look(client: &Client, roles: &Roles) -> Result<Found, UpstreamError> {
    let failed = |error: Error| refused("the database", &error);
    let row = client
        .query_one(
            "SELECT current_user::text, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
                (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = 'holdfast'),
                current_setting('server_version_num')::int, current_setting('server_encoding'),
                to_regclass('holdfast.schema_version') IS NOT NULL",
            &[],
        )
        .await
        .map_err(failed)?;
    let server: i32 = row.get(3);
    if server < SERVER_VERSION_MIN {
        return Err(UpstreamError::Mend(format!(
            "the server is PostgreSQL {}; expected 15 or later",
            server / 10_000
        )));
    }
    let encoding: String = row.get(4);
    if encoding != "UTF8" {
        return Err(UpstreamError::Mend(format!(
            "the database is encoded in {encoding}; expected UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    let version = if row.get(5) {
        let sql = "SELECT max(version) FROM holdfast.schema_version";
        client.query_one(sql, &[]).await.map_err(failed)?.get(0)
    } else {
        None
    };
    let names: Vec<&str> = [
        Some(owner_wanted(roles)),
        Some(&roles.writer),
        roles.reader.as_deref(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let there = client
        .query(
            "SELECT rolname::text FROM pg_roles WHERE rolname = ANY ($1)",
            &[&names],
        )
        .await
        .map_err(failed)?;
    Ok(Found {
        user: row.get(0),
        is_superuser: row.get(1),
        owner: row.get(2),
        version,
        roles: there.iter().map(|row| row.get(0)).collect(),
    })
}

fn owner_wanted(roles: &Roles) -> &str {
    roles.owner.as_deref().unwrap_or(OWNER_DEFAULT)
}

/// What leads from `found` to the schema of this version with the rights of `roles`.
fn plan(found: &Found, roles: &Roles) -> Result<Vec<Step>, UpstreamError> {
    let version = found.version.unwrap_or(0);
    if version > SCHEMA_VERSION {
        return Err(UpstreamError::Mend(format!(
            "the schema is version {version}, this program knows {SCHEMA_VERSION}; use a newer program"
        )));
    }
    if found.owner.is_some() && found.version.is_none() {
        return Err(UpstreamError::Mend(
            "there is a schema holdfast that this program did not make (no schema_version); \
             rename or drop it, or take another database"
                .into(),
        ));
    }
    let mut steps = Vec::new();
    let owner = match (&found.owner, &roles.owner) {
        (Some(owner), _) => owner.clone(),
        (None, Some(owner)) => owner.clone(),
        (None, None) if found.is_superuser => OWNER_DEFAULT.to_owned(),
        (None, None) => found.user.clone(),
    };
    for (name, what) in [
        (Some(&owner), "owner"),
        (Some(&roles.writer), "writer"),
        (roles.reader.as_ref(), "reader"),
    ] {
        if let Some(name) = name {
            check_name(name, what)?;
        }
    }
    if owner == roles.writer || roles.reader.as_ref() == Some(&roles.writer) {
        return Err(UpstreamError::Mend(format!(
            "the writer {:?} has another part too; expected a role of its own, which may do nothing but call ingest",
            roles.writer
        )));
    }
    let is_there = |name: &str| name == found.user || found.roles.iter().any(|role| role == name);
    if !is_there(&owner) {
        let says = format!("role {owner}: created, without login; it owns the schema");
        steps.push(Step::new(
            says,
            format!("CREATE ROLE {} NOLOGIN", quote(&owner)),
        ));
    }
    if found.owner.is_none() {
        steps.push(Step::new(
            format!("schema holdfast: created, owned by {owner}"),
            format!("CREATE SCHEMA holdfast AUTHORIZATION {}", quote(&owner)),
        ));
    }
    steps.push(Step::new(
        format!("acting as {owner}"),
        format!("SET LOCAL ROLE {}", quote(&owner)),
    ));
    for (number, sql) in (1..).zip(VERSIONS).filter(|(number, _)| *number > version) {
        steps.push(Step::new(format!("schema version {number}: applied"), *sql));
        steps.push(Step::new(
            format!("schema version {number}: noted"),
            format!(
                "INSERT INTO holdfast.schema_version (version, program) VALUES ({number}, 'holdfast {}')",
                env!("CARGO_PKG_VERSION")
            ),
        ));
    }
    if version == SCHEMA_VERSION {
        steps.push(Step::new(
            format!("schema version {version}: there already"),
            "SELECT 1",
        ));
    }
    steps.push(Step::new("views and functions: put in place", ROUTINES));
    steps.push(Step::new("acting as before", "RESET ROLE"));
    rights(roles, &owner, &is_there, &mut steps);
    Ok(steps)
}

fn rights(roles: &Roles, owner: &str, is_there: &dyn Fn(&str) -> bool, steps: &mut Vec<Step>) {
    let writer = quote(&roles.writer);
    for name in [Some(&roles.writer), roles.reader.as_ref()]
        .into_iter()
        .flatten()
    {
        if !is_there(name) {
            let says = format!("role {name}: created; it has no password yet");
            steps.push(Step::new(
                says,
                format!("CREATE ROLE {} LOGIN", quote(name)),
            ));
        }
    }
    if let Some(password) = &roles.writer_password {
        let verifier = postgres_protocol::password::scram_sha_256(password.as_bytes());
        steps.push(Step::new(
            format!("role {}: its password was set", roles.writer),
            format!("ALTER ROLE {writer} PASSWORD '{verifier}'"),
        ));
    }
    steps.push(Step::new(
        format!("acting as {owner}"),
        format!("SET LOCAL ROLE {}", quote(owner)),
    ));
    steps.push(Step::new(
        "public: no rights in the schema",
        "REVOKE ALL ON SCHEMA holdfast FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA holdfast FROM PUBLIC",
    ));
    steps.push(Step::new(
        format!(
            "role {}: may execute holdfast.ingest, and nothing else",
            roles.writer
        ),
        format!(
            "REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM {writer};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM {writer};
REVOKE ALL ON ALL ROUTINES IN SCHEMA holdfast FROM {writer};
REVOKE ALL ON SCHEMA holdfast FROM {writer};
GRANT USAGE ON SCHEMA holdfast TO {writer};
GRANT EXECUTE ON FUNCTION holdfast.ingest TO {writer}"
        ),
    ));
    if let Some(reader) = &roles.reader {
        let name = quote(reader);
        steps.push(Step::new(
            format!("role {reader}: may read everything"),
            format!(
                "GRANT USAGE ON SCHEMA holdfast TO {name};
GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {name};
GRANT EXECUTE ON FUNCTION holdfast.member TO {name}"
            ),
        ));
    }
    steps.push(Step::new("acting as before", "RESET ROLE"));
}

fn check_name(name: &str, what: &str) -> Result<(), UpstreamError> {
    let is_good = !name.is_empty()
        && name.len() <= ROLE_BYTES_MAX
        && !name.starts_with("pg_")
        && !name.eq_ignore_ascii_case("public")
        && !name.contains('\0');
    if is_good {
        return Ok(());
    }
    Err(UpstreamError::Mend(format!(
        "{what}: {name:?}; expected the name of a role, 1 to {ROLE_BYTES_MAX} bytes, not beginning with pg_"
    )))
}

/// As an identifier in SQL.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: Option<i32>) -> Found {
        Found {
            user: "postgres".into(),
            is_superuser: true,
            owner: version.map(|_| OWNER_DEFAULT.to_owned()),
            version,
            roles: Vec::new(),
        }
    }

    #[test]
    fn a_newer_or_foreign_schema_is_refused() {
        let newer = plan(&found(Some(SCHEMA_VERSION + 1)), &Roles::default());
        assert!(newer.unwrap_err().to_string().contains("newer program"));
        let foreign = Found {
            owner: Some("somebody".into()),
            ..found(None)
        };
        let refused = plan(&foreign, &Roles::default()).unwrap_err();
        assert!(refused.to_string().contains("did not make"));
    }

    #[test]
    fn a_writer_has_no_other_part_and_names_are_quoted() {
        let roles = Roles {
            owner: Some(WRITER_DEFAULT.into()),
            ..Roles::default()
        };
        assert!(plan(&found(None), &roles).is_err());
        for name in ["", "public", "pg_monitor"] {
            let roles = Roles {
                writer: name.into(),
                ..Roles::default()
            };
            assert!(plan(&found(None), &roles).is_err(), "{name:?}");
        }
        assert_eq!(quote("a\"; DROP ROLE b"), "\"a\"\"; DROP ROLE b\"");
    }
}
