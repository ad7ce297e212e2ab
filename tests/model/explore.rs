//! Owns: the search: every state that can be reached from one, breadth first, each looked at once.
//! May call: nothing of the product.
//! Never: know what a state means; keep more of a state that was left than its fingerprint and the way to it.
//!
//! Own code and no checker from a library: a state here is the gateway itself, which has no canonical `Hash` and is large,
//! so only one layer of states may be held, and the branches that were reached are counted on the way.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Something that can be explored.
pub(crate) trait Model: Clone {
    /// One way on.
    type Action: Clone + Debug;
    /// Every way on, always in the same order.
    fn actions(&self) -> Vec<Self::Action>;
    /// Takes one; `Err`: a promise was broken.
    fn apply(&mut self, action: &Self::Action) -> Result<(), String>;
    /// Equal for states that cannot differ from here on.
    fn fingerprint(&self) -> u64;
    /// The branches that the last action reached.
    fn marks(&self) -> Vec<&'static str>;
}

/// What a search came to.
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) transitions: u64,
    /// The longest of the shortest ways.
    pub(crate) depth: usize,
    /// No state was left unexplored.
    pub(crate) whole: bool,
    pub(crate) reached: BTreeMap<&'static str, u64>,
    /// The promise that was broken, and the shortest way there.
    pub(crate) broken: Option<(String, Vec<String>)>,
    pub(crate) took: Duration,
}

type Ways = HashMap<u64, (u64, u16)>;

/// Everything within `depth_max` actions of `start`, or the first broken promise.
pub(crate) fn explore<M: Model>(start: &M, depth_max: usize) -> Found {
    let begun = Instant::now();
    let root = start.fingerprint();
    let mut ways: Ways = HashMap::from([(root, (root, 0))]);
    let mut layer = vec![(root, start.clone())];
    let mut found = Found {
        states: 1,
        transitions: 0,
        depth: 0,
        whole: false,
        reached: BTreeMap::new(),
        broken: None,
        took: Duration::ZERO,
    };
    while !layer.is_empty() && found.depth < depth_max && found.broken.is_none() {
        layer = next_layer(start, layer, &mut ways, &mut found);
        found.depth += usize::from(!layer.is_empty());
    }
    found.whole = layer.is_empty() && found.broken.is_none();
    found.states = ways.len();
    found.took = begun.elapsed();
    found
}

fn next_layer<M: Model>(
    start: &M,
    layer: Vec<(u64, M)>,
    ways: &mut Ways,
    found: &mut Found,
) -> Vec<(u64, M)> {
    let mut next = Vec::new();
    for (from, state) in layer {
        for (index, action) in state.actions().into_iter().enumerate() {
            let mut after = state.clone();
            found.transitions += 1;
            let kept = after.apply(&action);
            for mark in after.marks() {
                *found.reached.entry(mark).or_default() += 1;
            }
            if let Err(promise) = kept {
                let mut way = way_to(start, ways, from);
                way.push(format!("{action:?}"));
                found.broken = Some((promise, way));
                return Vec::new();
            }
            let print = after.fingerprint();
            if let std::collections::hash_map::Entry::Vacant(free) = ways.entry(print) {
                free.insert((from, index as u16));
                next.push((print, after));
            }
        }
    }
    next
}

/// The actions from the start to a state: their places are kept, so they are played again to be named.
fn way_to<M: Model>(start: &M, ways: &Ways, mut at: u64) -> Vec<String> {
    let mut places = Vec::new();
    while let Some((from, place)) = ways.get(&at).filter(|(from, _)| *from != at) {
        places.push(*place);
        at = *from;
    }
    let mut state = start.clone();
    let step = |place: u16| {
        let action = state.actions()[usize::from(place)].clone();
        let _ = state.apply(&action);
        format!("{action:?}")
    };
    places.into_iter().rev().map(step).collect()
}
