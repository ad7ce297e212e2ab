//! Owns: `holdfast receiver`: its file, its signals, the service manager.
//! May call: config, receiver, upstream, secret.
//! Never: hold a rule of the receiver; start with a file that has a problem.

use super::logging;
use super::run::runtime;
use holdfast::cli::exit::Exit;
use holdfast::cli::text::{Out, tell};
use holdfast::cli::{CONFIG_DEFAULT, Global, RECEIVER_CONFIG_DEFAULT};
use holdfast::config::{self, DatabaseSpec, MqttSpec, Problem, ReceiverConfig};
use holdfast::receiver::mqtt::{self, MqttReceiverConfig, MqttStats};
use holdfast::receiver::{
    BooksLedger, Connect, GatewaySettings, Ledger, Limits, Receiver, ReceiverError, Reloader,
    Settings, TlsFiles,
};
use holdfast::secret;
use holdfast::upstream::broker::Broker;
use holdfast::upstream::topic::TopicTemplate;
use holdfast::upstream::{Books, Target, UpstreamError};
use log::LevelFilter;
use sd_notify::NotifyState;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The receiver, until it is told to stop; with `check`, its file alone.
pub(crate) fn receiver(global: &Global, check: bool) -> Exit {
    let path = if global.config == Path::new(CONFIG_DEFAULT) {
        PathBuf::from(RECEIVER_CONFIG_DEFAULT)
    } else {
        global.config.clone()
    };
    if check {
        return check_file(global, &path);
    }
    logging::start(LevelFilter::Info);
    let config = match config::load_receiver(&path) {
        Ok(config) => config,
        Err(problems) => {
            for problem in &problems {
                log::error!("{problem}");
            }
            return Exit::Configuration;
        }
    };
    let Some(runtime) = runtime() else {
        return Exit::NotReachable;
    };
    match runtime.block_on(run(&path, &config)) {
        Ok(()) => Exit::Done,
        Err(error) => {
            log::error!("{error}");
            match error {
                ReceiverError::Files(_) => Exit::Configuration,
                ReceiverError::Bind { .. } => Exit::NotReachable,
            }
        }
    }
}

fn check_file(global: &Global, path: &Path) -> Exit {
    let mut out = Out::stdout(global.json);
    let exit = match config::load_receiver(path) {
        Ok(config) => {
            for warning in &config.warnings {
                tell(&format!("warning: {warning}"));
            }
            let tls = if config.tls.is_some() {
                "TLS"
            } else {
                "no TLS"
            };
            let gateways = config.gateways.len();
            let file = path.display();
            if global.json {
                let answer = serde_json::json!({
                    "ok": true, "file": file.to_string(), "listen": config.listen.to_string(),
                    "tls": config.tls.is_some(), "gateways": gateways, "warnings": config.warnings,
                });
                out.raw(&answer.to_string());
            } else {
                out.line(&format!(
                    "{file}: good; {}, {tls}, {gateways} gateway(s)",
                    config.listen
                ));
            }
            Exit::Done
        }
        Err(problems) => {
            refuse(&problems);
            Exit::Configuration
        }
    };
    out.flush();
    exit
}

fn refuse(problems: &[Problem]) {
    for problem in problems {
        tell(&problem.to_string());
    }
    tell(&format!("{} problem(s)", problems.len()));
}

fn settings(config: &ReceiverConfig) -> Settings {
    let (given, default) = (config.limits, Limits::default());
    let in_flight = given.in_flight.unwrap_or(default.in_flight);
    let each = given.in_flight_per_gateway.unwrap_or(in_flight.div_ceil(4));
    let gateways = config.gateways.iter().map(|rule| GatewaySettings {
        name: rule.name.clone(),
        token_file: rule.token_file.clone(),
        sources: rule.sources.clone(),
    });
    Settings {
        listen: config.listen,
        tls: config
            .tls
            .clone()
            .map(|(certificate_file, key_file)| TlsFiles {
                certificate_file,
                key_file,
            }),
        gateways: gateways.collect(),
        metrics_token_file: config.metrics_token_file.clone(),
        books: config.connections,
        limits: Limits {
            connections: given.connections.unwrap_or(default.connections),
            body_bytes: given.body_bytes.unwrap_or(default.body_bytes),
            events: given.events.unwrap_or(default.events),
            in_flight,
            in_flight_per_gateway: each.min(in_flight),
            header_ms: given.header_ms.unwrap_or(default.header_ms),
            body_ms: given.body_ms.unwrap_or(default.body_ms),
            unread_ms: default.unread_ms,
        },
    }
}

/// Opens connections to the books, with the secrets as they are then.
fn books(database: &DatabaseSpec) -> Connect {
    let database = database.clone();
    Arc::new(move || {
        let database = database.clone();
        Box::pin(async move {
            let mend = |error: String| UpstreamError::Mend(error);
            let password = database
                .password_file
                .as_deref()
                .map(secret::read)
                .transpose();
            let password = password.map_err(|error| mend(error.to_string()))?;
            let ca_pem = database.ca_file.as_ref().map(std::fs::read).transpose();
            let target = Target {
                url: database.url,
                password: password.map(|secret| secret.reveal().to_owned()),
                ca_pem: ca_pem.map_err(|error| mend(format!("ca_file: {error}")))?,
            };
            let books = Books::connect(&target).await?;
            Ok(Box::new(BooksLedger(books)) as Box<dyn Ledger>)
        })
    })
}

fn mqtt_config(spec: &MqttSpec) -> MqttReceiverConfig {
    let host = rustix::system::uname();
    let made = || format!("holdfast-receiver-{}", host.nodename().to_string_lossy());
    MqttReceiverConfig {
        broker: Broker {
            url: spec.broker.url.clone(),
            password_file: spec.broker.password_file.clone(),
            ca_file: spec.broker.ca_file.clone(),
        },
        client_id: spec.broker.client_id.clone().unwrap_or_else(made),
        topic: TopicTemplate::new(&spec.topic),
        ack_topic: TopicTemplate::new(&spec.ack_topic),
        group: spec.group.clone(),
        session_s: spec.session_s,
        batch_events_max: mqtt::BATCH_EVENTS_DEFAULT,
        gather_ms: mqtt::GATHER_MS_DEFAULT,
    }
}

async fn run(path: &Path, config: &ReceiverConfig) -> Result<(), ReceiverError> {
    for warning in &config.warnings {
        log::warn!("{warning}");
    }
    let mut receiver = Receiver::bind(settings(config), books(&config.database)).await?;
    let listening = receiver.address().unwrap_or(config.listen);
    let reloader = receiver.reloader();
    let (stop, stopping) = watch::channel(false);
    let signals =
        Signals::new().map_err(|error| ReceiverError::Files(format!("signals: {error}")))?;
    let from_broker = config.mqtt.as_ref().map(|spec| {
        let stats = Arc::new(MqttStats::default());
        receiver.show(Arc::clone(&stats));
        let books = books(&config.database);
        tokio::spawn(mqtt::run(mqtt_config(spec), books, stats, stopping.clone()))
    });
    let serving = tokio::spawn(receiver.serve(stopping));
    log::info!(
        "receiver: listening on {listening}, {}; {} gateway(s)",
        if config.tls.is_some() {
            "TLS"
        } else {
            "no TLS"
        },
        config.gateways.len()
    );
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("receiving")]);
    signals.until_stop(path, &reloader).await;
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    log::info!("receiver: stopping");
    stop.send_replace(true);
    for task in [Some(serving), from_broker].into_iter().flatten() {
        if let Err(error) = task.await {
            log::error!("receiver: it ended badly: {error}");
        }
    }
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn until_stop(mut self, path: &Path, reloader: &Reloader) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => reload(path, reloader),
            }
        }
    }
}

/// All or nothing.
fn reload(path: &Path, reloader: &Reloader) {
    match config::load_receiver(path) {
        Err(problems) => {
            for problem in problems {
                log::error!("{problem}");
            }
            log::error!("receiver: nothing is reloaded");
        }
        Ok(config) => match reloader.reload(&settings(&config)) {
            Ok(()) => log::info!("receiver: reloaded; {} gateway(s)", config.gateways.len()),
            Err(error) => log::error!("receiver: nothing is reloaded: {error}"),
        },
    }
}
