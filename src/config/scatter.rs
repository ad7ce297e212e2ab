//! Owns: reading a command whose arguments each say where they are written: which places, and that one frame does it.
//! May call: action, point, machine's helpers; core's rules for places apart.
//! Never: let a command need more than one write frame (POL-11), or write one place twice.

use super::action::{Arg, mailbox_mend};
use super::command::Context;
use super::machine::claim;
use super::point::{self, Claim};
use super::reader::Node;
use crate::core::spec::{Action, Area, DataType, Scalar, WordOrder};
use crate::core::spread::{self, Unfit};

/// One value and where it goes.
struct Put<'n, 'a> {
    what: String,
    node: &'n Node<'a>,
    at: Scalar,
}

/// `own` is the place of one of the arguments.
pub(super) fn action<'a>(
    own: &Node<'a>,
    request_id: Option<&Node<'a>>,
    args: &[Arg<'a>],
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Action> {
    let Some(code) = context.reach.apart else {
        return own.wrong(
            "no write in an argument: no request of this protocol writes places apart in one frame",
            Some("give the command itself a write, and its arguments lie one after another from there on".into()),
        );
    };
    let homeless = args.iter().filter(|arg| arg.place.is_none());
    let homeless: Vec<String> = homeless.map(|arg| format!("{:?}", arg.spec.name)).collect();
    if !homeless.is_empty() {
        own.problem(
            format!("write in an argument, and none in {}", homeless.join(", ")),
            "write in each of the command's arguments, or in none and one for the command",
            None,
        );
        return None;
    }
    let mut puts: Vec<Option<Put<'_, 'a>>> = args.iter().map(put).collect();
    let order = args.last()?.spec.word_order;
    puts.extend(request_id.map(|node| put_id(node, order)));
    let puts = puts.into_iter().collect::<Option<Vec<_>>>()?;
    if !apart(&puts) {
        return None;
    }
    let parts: Vec<(Area, usize)> = puts.iter().map(|put| width(&put.at)).collect();
    if let Err(unfit) = spread::by(&parts, code) {
        refuse(unfit, own, &puts, context);
        return None;
    }
    for put in &puts {
        claim(claims, &put.what, put.node, Some(put.at));
    }
    let mut places = puts.iter().map(|put| put.at.address);
    Some(Action::Scatter {
        places: places.by_ref().take(args.len()).collect(),
        request_id: places.next(),
    })
}

fn put<'n, 'a>(arg: &'n Arg<'a>) -> Option<Put<'n, 'a>> {
    let (node, spec) = (arg.place.as_ref()?, &arg.spec);
    let address = point::address(node)?;
    Some(Put {
        what: format!("argument {:?}", spec.name),
        node,
        at: point::place(node, None, address, spec.data_type, spec.word_order)?,
    })
}

fn put_id<'n, 'a>(node: &'n Node<'a>, order: WordOrder) -> Option<Put<'n, 'a>> {
    if node.as_text() == Some("append") {
        return node.wrong(
            "a place for it, such as \"D300\": arguments that stand apart have no end to append it to",
            None,
        );
    }
    let address = point::address(node)?;
    Some(Put {
        what: "argument (the request id)".to_owned(),
        node,
        at: point::place(node, None, address, DataType::U32, order)?,
    })
}

fn width(at: &Scalar) -> (Area, usize) {
    (at.address.area(), at.data_type.registers().into())
}

/// Whether no place is written twice; says so otherwise.
fn apart(puts: &[Put<'_, '_>]) -> bool {
    for (n, late) in puts.iter().enumerate() {
        let (area, range) = point::extent(&late.at);
        let twice = puts[..n].iter().find(|early| {
            let (other, taken) = point::extent(&early.at);
            area == other && point::overlap(&range, &taken)
        });
        if let Some(early) = twice {
            late.node.problem(
                format!(
                    "{} on {}, which {} writes too",
                    late.what, late.at.address, early.what
                ),
                "a place of its own for each",
                None,
            );
            return false;
        }
    }
    true
}

fn refuse(unfit: Unfit, own: &Node<'_>, puts: &[Put<'_, '_>], context: &Context<'_>) {
    let of = |bits: bool| -> String {
        let found = puts
            .iter()
            .filter(|put| put.at.address.area().is_bits() == bits);
        found
            .map(|put| put.what.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    match unfit {
        Unfit::Mixed => own.problem(
            format!("bits for {}, and words for {}", of(true), of(false)),
            "bits alone or words alone: no frame writes both, and half of two could be applied",
            mailbox_mend(context),
        ),
        Unfit::Contact(kind) => own.problem(
            format!("{} among places apart", kind.name()),
            "other devices: a random access names no contact or coil of a timer or counter",
            None,
        ),
        Unfit::Bits(most) => own.problem(
            format!("{} bits to write", puts.len()),
            format!("at most {most}, one write frame, as half of two could be applied"),
            mailbox_mend(context),
        ),
        Unfit::Words => {
            let words: usize = puts.iter().map(|put| width(&put.at).1).sum();
            own.problem(
                format!("{words} words to write to {} places", puts.len()),
                "what one write frame takes (160 single words, 137 double words, or longer stretches; in ASCII half \
                 of it), as half of two could be applied",
                mailbox_mend(context),
            );
        }
    }
}
