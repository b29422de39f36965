//! Tests of concurrent saves by several threads and processes, and of interrupted saves.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use warpline::full;
use warpline_files::{SaveCall, watch};
use warpline_nn::{FileError, StateDict, load_file, save_file, save_sharded};

use crate::files::Folder;

/// Returns model `number`. Models differ in size, and all elements of a model are its number.
fn model(number: usize) -> StateDict {
    let tensor = |i: usize| full([100 + 20 * number + i], number as f64, ()).unwrap();
    (0..3).map(|i| (format!("w{i}"), tensor(i))).collect()
}

/// Returns the number of the model in a file.
fn number(path: &Path) -> usize {
    let state = load_file(path, "cpu").unwrap();
    let values = state.iter().flat_map(|(_, tensor)| tensor.to_vec::<f32>().unwrap());
    let values: Vec<f32> = values.collect();
    let number = values[0] as usize;
    assert!(values.iter().all(|value| *value == values[0]), "parts of several models");
    assert_eq!(values.len(), model(number).iter().map(|(_, tensor)| tensor.numel()).sum::<usize>());
    number
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A process that runs [`program_of_the_saver`].
struct Saver {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Saver {
    fn start(variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["saving::program_of_the_saver", "--exact", "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Lets the process save once.
    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn wait(&mut self) {
        let mut line = String::new();
        while !line.contains("saved") {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "the process ended");
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The code of the child processes that other tests start. Saves a model for each line of input, or aborts at a
/// given file system call of the first save. Does nothing unless a parent has set the environment variables.
#[test]
fn program_of_the_saver() {
    let variable = |name: &str| std::env::var(format!("SAVER_{name}")).ok();
    let Some(path) = variable("PATH").map(PathBuf::from) else { return };
    let number = |name: &str| variable(name).map(|text| text.parse::<usize>().unwrap());
    let state = model(number("MODEL").unwrap());
    let save = || {
        if path.is_dir() { save_sharded(&state, &path, 900) } else { save_file(&state, &path, ()) }
    };
    if let Some(last) = number("ABORT") {
        let mut calls = 0;
        let abort = move |_| {
            calls += 1;
            if calls > last { std::process::abort() } else { Ok(()) }
        };
        return watch(abort, save).unwrap();
    }
    for line in std::io::stdin().lines() {
        line.unwrap();
        save().unwrap();
        println!("saved");
    }
}

/// Number of rounds of savers.
const ROUNDS: usize = 1000;

/// Returns a folder in memory where the system has one, because a save syncs twice, which takes milliseconds on a disk.
/// The atomicity towards other processes does not depend on the file system.
fn in_memory(name: &str) -> Folder {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { Folder::below(memory, name) } else { Folder::new(name) }
}

/// Lets 8 threads and 4 processes save at the same time, and calls `check` after each round.
fn rounds(path: &Path, rounds: usize, check: impl Fn()) {
    let mut savers: Vec<Saver> = (8..12)
        .map(|number| {
            let path = path.to_str().unwrap();
            Saver::start(&[("SAVER_PATH", path), ("SAVER_MODEL", &number.to_string())])
        })
        .collect();
    let (begin, end) = (Barrier::new(9), Barrier::new(9));
    let (failed, over) = (Mutex::new(None), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..8 {
            let (begin, end, failed, over) = (&begin, &end, &failed, &over);
            scope.spawn(move || {
                let state = model(number);
                loop {
                    begin.wait();
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let saved = match path.is_dir() {
                        true => save_sharded(&state, path, 900),
                        false => save_file(&state, path, ()),
                    };
                    if let Err(error) = saved {
                        failed.lock().unwrap().get_or_insert(error);
                    }
                    end.wait();
                }
            });
        }
        // Catch panics, so that the threads can end.
        let all = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..rounds {
                savers.iter_mut().for_each(Saver::go);
                begin.wait();
                end.wait();
                savers.iter_mut().for_each(Saver::wait);
                assert!(failed.lock().unwrap().is_none(), "{failed:?}");
                check();
            }
        }));
        over.store(true, Ordering::Relaxed);
        begin.wait();
        if let Err(panic) = all {
            resume_unwind(panic);
        }
    });
}

#[test]
fn threads_and_processes_that_save_to_one_path_leave_one_whole_model() {
    let folder = in_memory("at-once");
    let path = folder.file("model.safetensors");
    rounds(&path, ROUNDS, || {
        assert!(number(&path) < 12);
        assert_eq!(names(&folder.0), ["model.safetensors".to_owned()].into());
    });
}

#[test]
fn threads_and_processes_that_save_shards_to_one_folder_leave_one_whole_model() {
    let folder = in_memory("shards-at-once");
    let index = folder.file("model.safetensors.index.json");
    rounds(&folder.0, ROUNDS / 10, || {
        assert!(number(&index) < 12);
        let names = names(&folder.0);
        let text = fs::read_to_string(&index).unwrap();
        assert!(names.len() > 2, "{names:?}");
        assert!(names.iter().all(|name| index.ends_with(name) || text.contains(name)), "{names:?}");
    });
}

/// The index and the shards may be replaced during a load.
#[test]
fn a_load_during_saves_of_shards_finds_one_whole_model() {
    let folder = in_memory("shards-read");
    save_sharded(&model(0), &folder.0, 900).unwrap();
    let path = folder.0.to_str().unwrap().to_owned();
    let mut saver = Saver::start(&[("SAVER_PATH", &path), ("SAVER_MODEL", "1")]);
    for _ in 0..ROUNDS {
        saver.go();
        assert!(number(&folder.file("model.safetensors.index.json")) < 2);
        saver.wait();
    }
}

#[test]
fn a_process_killed_at_any_call_of_a_save_leaves_the_older_or_the_newer_model() {
    for sharded in [false, true] {
        let folder = Folder::new(if sharded { "killed-shards" } else { "killed" });
        let (path, loaded) = match sharded {
            true => (folder.0.clone(), folder.file("model.safetensors.index.json")),
            false => (folder.file("model.safetensors"), folder.file("model.safetensors")),
        };
        let save = |state: StateDict| match sharded {
            true => save_sharded(&state, &path, 900),
            false => save_file(&state, &path, ()),
        };
        let mut newer_after = None;
        for calls in 0.. {
            save(model(1)).unwrap();
            if sharded {
                let left = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
                let left: Vec<_> = left.collect();
                assert_eq!(left.len(), 4, "three shards and the index, but: {left:?}");
            }
            let mut saver = Saver::start(&[
                ("SAVER_PATH", path.to_str().unwrap()),
                ("SAVER_MODEL", "2"),
                ("SAVER_ABORT", &calls.to_string()),
            ]);
            let complete = saver.child.wait().unwrap().success();
            let newer = match number(&loaded) {
                1 => false,
                2 => true,
                other => panic!("model {other}"),
            };
            newer_after = newer_after.or(newer.then_some(calls));
            assert_eq!(newer, newer_after.is_some(), "newer, then older, at call {calls}");
            if complete {
                assert!(newer && newer_after < Some(calls), "{newer_after:?}, {calls}");
                assert!(calls >= if sharded { 15 } else { 5 }, "{calls} calls");
                break;
            }
        }
    }
}

/// Returns the file system calls of a save, in order.
fn calls(save: impl FnOnce()) -> Vec<SaveCall> {
    let log = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&log);
    watch(
        move |call| {
            noted.borrow_mut().push(call);
            Ok(())
        },
        save,
    );
    log.take()
}

#[test]
fn a_save_writes_syncs_renames_and_syncs_the_folder_in_this_order() {
    use SaveCall::{Create, Remove, Rename, Sync, SyncFolder, Write};
    let one = [Create, Write, Sync, Rename, SyncFolder];
    let folder = Folder::new("order");
    let path = folder.file("model.safetensors");
    assert_eq!(calls(|| save_file(&model(1), &path, ()).unwrap()), one);
    assert_eq!(calls(|| save_file(&model(2), &path, ()).unwrap()), one, "over another");
    // A tensor of several chunks.
    let large: StateDict =
        [("large".to_owned(), full([1 << 20], 1.0, ()).unwrap())].into_iter().collect();
    let mut order = calls(|| save_file(&large, &path, ()).unwrap());
    assert!(order.iter().filter(|call| **call == Write).count() >= 4);
    order.dedup();
    assert_eq!(order, one);
    // Write three shards and the index, then remove the three former shards.
    save_sharded(&model(1), &folder.0, 900).unwrap();
    let order = calls(|| save_sharded(&model(2), &folder.0, 900).unwrap());
    let mut expected = one.repeat(4);
    expected.extend([Remove; 3]);
    assert_eq!(order, expected);
}

/// Injects a failure at each call of a save, except removals of files. Afterwards the former model can be loaded, and
/// no other file is left. If only the last sync of the folder fails, the new model can be loaded, and the former shards
/// are left too.
#[test]
fn a_call_that_fails_leaves_one_whole_model_and_no_other_file() {
    let folder = Folder::new("failing");
    let index = folder.file("model.safetensors.index.json");
    for failing in 0.. {
        save_sharded(&model(1), &folder.0, 900).unwrap();
        let mut count = 0;
        let fail = move |call| {
            count += 1;
            match count == failing + 1 && call != SaveCall::Remove {
                true => Err(std::io::Error::other("injected")),
                false => Ok(()),
            }
        };
        let saved = watch(fail, || save_sharded(&model(2), &folder.0, 900));
        let loaded = number(&index);
        let text = fs::read_to_string(&index).unwrap();
        let files = names(&folder.0);
        let unknown = files.iter().filter(|name| !index.ends_with(name) && !text.contains(*name));
        if saved.is_ok() {
            assert_eq!((loaded, unknown.count(), failing), (2, 0, 20));
            break;
        }
        // If only the last sync of the folder fails, the new index is in place, and the former shards stay.
        let last = failing == 19;
        assert_eq!((loaded, unknown.count()), if last { (2, 3) } else { (1, 0) }, "{failing}");
    }
}

#[test]
#[cfg(unix)]
fn loading_a_fifo_or_a_folder_is_an_error_and_does_not_wait() {
    let folder = Folder::new("fifo");
    for name in ["fifo.safetensors", "fifo.json"] {
        let made = Command::new("mkfifo").arg(folder.file(name)).status().unwrap();
        assert!(made.success());
    }
    fs::create_dir(folder.file("folder.safetensors")).unwrap();
    for name in ["fifo.safetensors", "fifo.json", "folder.safetensors"] {
        // Load in a thread, so that a wait for the FIFO's writer fails the test.
        let (path, (done, outcome)) = (folder.file(name), channel());
        thread::spawn(move || done.send(load_file(path, "cpu").map(drop)));
        let error = outcome.recv_timeout(Duration::from_secs(30)).expect(name).unwrap_err();
        let source = error.find::<FileError>().expect("the file's error").to_string();
        assert!(source.ends_with("the path is not a regular file"), "{error}");
    }
}
