//! The results of a campaign.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::campaign::Campaign;
use crate::run::LATE;
use crate::step::Step;

/// Class of a program in which the worker process ended.
pub(crate) const PROCESS_ENDED: &str = "the process ended";
/// Largest number of classes that are investigated.
const CLASSES: usize = 60;
/// Largest number of investigations of a class that has not repeated.
const TRIES: usize = 3;

/// Class and text of a difference.
pub(crate) type SeenDifference = (String, String);

/// The result of rerunning a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rerun {
    /// Whether the difference occurred in each run.
    pub(crate) repeats: bool,
    pub(crate) text: Option<String>,
    pub(crate) note: String,
    /// The shrunk program.
    pub(crate) program: Vec<Step>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    programs: u64,
    tries: usize,
    /// Whether a worker is investigating the class.
    busy: bool,
    seed: u64,
    text: String,
    again: Rerun,
}

/// The results of a campaign.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Number of programs without a difference.
    pub(crate) agree: u64,
    classes: BTreeMap<String, Class>,
    /// The classes of each program that differs.
    differing: Vec<BTreeSet<String>>,
    pub(crate) took: Duration,
}

impl Report {
    /// Counts a program. Returns the classes to investigate.
    pub(crate) fn note(&mut self, seed: u64, found: Vec<SeenDifference>) -> Vec<String> {
        if found.is_empty() {
            self.agree += 1;
            return Vec::new();
        }
        let mut look = Vec::new();
        let mut classes = BTreeSet::new();
        for (class, text) in found {
            let room = self.classes.len() < CLASSES || self.classes.contains_key(&class);
            let name = if room { class } else { "(other kinds)".to_owned() };
            let entry = self.classes.entry(name.clone()).or_default();
            entry.programs += 1;
            if !entry.again.repeats && entry.tries < TRIES && room && !entry.busy {
                entry.tries += 1;
                entry.busy = true;
                (entry.seed, entry.text) = (seed, text);
                look.push(name.clone());
            } else if !room {
                // This class is not investigated, so it counts as repeating.
                (entry.seed, entry.text, entry.again.repeats) = (seed, text, true);
            }
            classes.insert(name);
        }
        self.differing.push(classes);
        look
    }

    /// Counts a program whose process ended during a rerun.
    pub(crate) fn gone(&mut self, seed: u64, found: &[SeenDifference]) {
        let look = self.note(seed, found.to_vec());
        if let Some(class) = self.classes.get_mut(PROCESS_ENDED) {
            if !look.is_empty() {
                class.busy = false;
            }
            print(PROCESS_ENDED, class);
        }
    }

    /// Records and prints the result of an investigation.
    pub(crate) fn update(&mut self, class: &str, mut again: Rerun) {
        let Some(entry) = self.classes.get_mut(class) else { return };
        entry.busy = false;
        if entry.again.repeats {
            return;
        }
        if let Some(text) = again.text.take().filter(|text| !text.is_empty()) {
            entry.text = text;
        }
        entry.again = again;
        print(class, entry);
    }

    /// Returns the numbers of programs that differ in each run, that differed once, and that only
    /// have late calls.
    fn differ(&self) -> [u64; 3] {
        let late = |class: &String| class.starts_with(LATE);
        let sure = |class: &String| {
            !late(class) && (class == PROCESS_ENDED || self.classes[class].again.repeats)
        };
        let mut counts = [0; 3];
        for classes in &self.differing {
            let kind = match () {
                () if classes.iter().any(sure) => 0,
                () if classes.iter().all(late) => 2,
                () => 1,
            };
            counts[kind] += 1;
        }
        counts
    }

    /// Returns a line about the progress.
    pub(crate) fn progress(&self, campaign: &Campaign, began: Instant) -> String {
        let [differ, once, late] = self.differ();
        let (agree, of, seconds) = (self.agree, campaign.programs, began.elapsed().as_secs());
        format!(
            "{seconds} s: of {of} programs {agree} agree, {differ} differ, {once} differed once, \
             {late} have late calls"
        )
    }

    /// Returns the shrunk programs by class.
    pub(crate) fn shrunk(&self) -> impl Iterator<Item = (&str, &[Step])> {
        self.classes.iter().map(|(class, found)| (&**class, &*found.again.program))
    }

    /// Prints the results. Returns `true` if no program differs. If `strict`, differences that did
    /// not repeat and programs that were not run count as failures, too.
    pub(crate) fn print(&self, campaign: &Campaign, strict: bool) -> bool {
        println!();
        for (class, found) in &self.classes {
            let again = if found.again.repeats { "" } else { ", not each time" };
            println!("{:5} programs{again}, first {}: {class}", found.programs, found.seed);
        }
        let [differ, once, late] = self.differ();
        let kind = if campaign.options.sticky { "sticky programs" } else { "programs" };
        println!(
            "{} {kind} agree on {} device(s) (seed {}), {differ} differences, {once} programs \
             differed once and not again, {late} have late calls, in {:.1} s, {:.0} programs/s",
            self.agree,
            campaign.options.devices,
            campaign.start,
            self.took.as_secs_f64(),
            (self.agree + differ + once + late) as f64 / self.took.as_secs_f64().max(1e-3)
        );
        let left = campaign.programs.saturating_sub(self.agree + differ + once + late);
        if left > 0 {
            println!("{left} programs were not run, because the time was over");
        }
        differ == 0 && (once + left == 0 || !strict)
    }
}

fn print(class: &str, found: &Class) {
    let mut text =
        format!("\n== {class}\n   in the program of seed {}\n   {}\n", found.seed, found.text);
    if !found.again.repeats {
        text += "   the difference does not repeat in each run, so the program was not shrunk\n";
    }
    if !found.again.note.is_empty() {
        text += &format!("   {}\n", found.again.note);
    }
    for step in &found.again.program {
        text += &format!("    {step:?},\n");
    }
    print!("{text}");
}

/// Late calls are recognized only by their duration, so they must not fail a campaign.
#[test]
fn late_calls_are_shown_and_fail_no_campaign() {
    let campaign = crate::campaign(crate::worker::ReferenceDriver::Driver, false, 1, 3);
    let mut report = Report::default();
    let seen = |class: &str| vec![(class.to_owned(), String::new())];
    report.note(1, Vec::new());
    report.note(2, seen("late: HostUnregister"));
    report.update("late: HostUnregister", Rerun { repeats: true, ..Rerun::default() });
    assert_eq!(report.differ(), [0, 0, 1]);
    assert!(report.print(&campaign, false));
    report.note(3, seen("HostUnregister: does not wait / waits"));
    let returned = "HostUnregister: does not wait / waits";
    report.update(returned, Rerun { repeats: true, ..Rerun::default() });
    assert_eq!(report.differ(), [1, 0, 1]);
    assert!(!report.print(&campaign, false));
}
