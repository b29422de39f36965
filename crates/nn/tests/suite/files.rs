//! Tests of saving and loading files, and of errors for truncated or invalid files.

use std::fs;
use std::path::{Path, PathBuf};

use warpline::{DType, Device, Result, arange, randn, tensor};
use warpline_nn::{FileError, LoadOptions, StateDict, load_file, save_file, save_sharded};

use crate::common::{World, schedules};

/// A folder that is removed after the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    pub(crate) fn below(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("warpline-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a tensor of each dtype, a view, a tensor of several chunks, a scalar, and a tensor without elements.
fn state() -> Result<StateDict> {
    let mut state = StateDict::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I64, DType::I32] {
        let turned = arange(12, ())?.to(dtype)?.reshape([3, 4])?.t()?;
        state.insert(format!("of.{dtype}"), turned);
    }
    state.insert("bool", tensor([true, false, true], ())?);
    state.insert("bytes", tensor([1u8, 2, 3], ())?);
    state.insert("large", arange(5_000_000f32, ())?);
    state.insert("scalar", tensor(2.5f32, ())?);
    state.insert("none", randn([0, 3], ())?);
    Ok(state)
}

fn check(loaded: &StateDict, device: Device) -> Result<()> {
    let expected = state()?;
    assert_eq!(loaded.len(), expected.len());
    for (name, tensor) in expected.iter() {
        let own = loaded.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(
            (own.size(), own.dtype(), own.device()),
            (tensor.size(), tensor.dtype(), device)
        );
        let same = own.cpu()?.eq(tensor)?.all(())?;
        assert!(same.item::<bool>()?, "{name}");
    }
    Ok(())
}

#[test]
fn saved_tensors_load_on_every_device() {
    let folder = Folder::new("everywhere");
    let path = folder.file("all.safetensors");
    schedules(1, warpline::SyncPolicy::Auto, |world: &World| {
        for place in world.places() {
            let moved = state()?.into_iter().map(|(name, t)| Ok((name, t.to(place)?)));
            let moved: StateDict = moved.collect::<Result<Vec<_>>>()?.into_iter().collect();
            save_file(&moved, &path, ())?;
            assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else is left");
            check(&load_file(&path, place)?, place)?;
        }
        Ok(())
    });
}

#[test]
fn sharded_files_have_an_index_and_loading_reports_progress() {
    let folder = Folder::new("shards");
    save_sharded(&state().unwrap(), &folder.0, 1 << 20).unwrap();
    let shards = fs::read_dir(&folder.0).unwrap().count();
    assert!(shards > 2, "{shards} files");
    let index = folder.file("model.safetensors.index.json");
    let mut seen = Vec::new();
    let mut note = |progress| seen.push(progress);
    let options = LoadOptions::new().progress(&mut note);
    check(&load_file(&index, options).unwrap(), Device::Cpu).unwrap();
    assert!(seen.windows(2).all(|two| two[0].bytes < two[1].bytes));
    let last = seen.last().expect("pieces");
    assert_eq!(last.bytes, last.total);
    // Invalid indices: a tensor that is not in its file, a name that occurs twice, a file in another folder.
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("\"scalar\"", "\"scaler\"")).unwrap();
    let error = load_file(&index, "cpu").unwrap_err();
    assert!(error.to_string().contains("contains the tensor `scaler`, but it does not"), "{error}");
    fs::write(&index, text.replace("\"scalar\"", "\"bool\"")).unwrap();
    assert!(load_file(&index, "cpu").unwrap_err().to_string().contains("`bool` occurs twice"));
    fs::write(&index, text.replace("\"model-", "\"../model-")).unwrap();
    assert!(load_file(&index, "cpu").unwrap_err().to_string().contains("not beside it"));
}

fn refused(path: &Path, bytes: &[u8]) -> String {
    fs::write(path, bytes).unwrap();
    let error = load_file(path, "cpu").expect_err("the file is wrong");
    assert!(error.to_string().starts_with(&format!("load_file: {}", path.display())), "{error}");
    error.to_string()
}

#[test]
fn the_error_of_a_truncated_or_invalid_file_names_the_place() {
    let folder = Folder::new("wrong");
    let path = folder.file("wrong.safetensors");
    let error = load_file(&path, "cpu").unwrap_err();
    assert!(matches!(error.find(), Some(FileError::Io { doing: "opening it", .. })), "{error}");
    let mut state = StateDict::new();
    state.insert("weight", arange(8f32, ()).unwrap());
    save_file(&state, &path, ()).unwrap();
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for cut in 0..whole.len() {
        let text = refused(&path, &whole[..cut]);
        assert!(
            cut < header || text.contains("`weight`") && text.contains("truncated"),
            "{cut}: {text}"
        );
    }
    assert!(refused(&path, &[&whole[..], b"x"].concat()).contains("but the header describes only"));
    let with = |from: &str, to: &str| -> Vec<u8> {
        let text = String::from_utf8_lossy(&whole[8..header]).replace(from, to);
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &whole[header..]].concat()
    };
    assert!(
        refused(&path, &with("\"F32\",\"shape\":[8]", "\"F8_E4M3\",\"shape\":[32]"))
            .contains("`weight` has dtype F8_E4M3")
    );
    assert!(refused(&path, &with("[8]", "[9]")).contains("`weight`"));
    assert!(refused(&path, &with("\"dtype\":\"F32\",", "")).contains("no dtype of the tensor"));
    let most = usize::MAX.to_string();
    let place = format!("\"U8\",\"shape\":[{most}],\"data_offsets\":[0,{most}]");
    let huge = with("\"F32\",\"shape\":[8],\"data_offsets\":[0,32]", &place);
    assert!(refused(&path, &huge).contains("is truncated"));
    assert!(refused(&path, &with("{\"weight", "{weight")).contains("header"));
    let twice = "{\"weight\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},\"weight";
    assert!(refused(&path, &with("{\"weight", twice)).contains("`weight` occurs twice"));
    assert!(refused(&path, &u64::MAX.to_le_bytes()).contains("header"));
    // A failed save leaves the previous file.
    fs::write(&path, &whole).unwrap();
    let mut reserved = StateDict::new();
    reserved.insert("__metadata__", arange(8f32, ()).unwrap());
    assert!(save_file(&reserved, &path, ()).unwrap_err().to_string().contains("`__metadata__`"));
    let nowhere = folder.file("no/such/folder.safetensors");
    let error = save_file(&state, nowhere, ()).unwrap_err();
    assert!(matches!(error.find(), Some(FileError::Io { .. })), "{error}");
    assert_eq!(load_file(&path, "cpu").unwrap().len(), 1);
}

/// If the last of several files is invalid, the load allocates no tensor: it checks all headers first.
#[test]
fn a_load_of_an_invalid_file_allocates_nothing() {
    let folder = Folder::new("half");
    save_sharded(&state().unwrap(), &folder.0, 1 << 20).unwrap();
    let last = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    let last = last.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).max();
    let last = last.expect("files");
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() - 1]).unwrap();
    crate::boxes::SimBox::lazy(1).enter(|| {
        assert!(load_file(folder.file("model.safetensors.index.json"), "cuda").is_err());
        let allocated = warpline::cuda::memory_allocated(())?;
        assert_eq!(allocated, 0, "headers are read first");
        Ok(())
    });
}

#[test]
fn files_of_torch_save_are_named_as_such() {
    let folder = Folder::new("torch-save");
    let zip = b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl".to_vec();
    // The first bytes of files by `torch.save(…, _use_new_zipfile_serialization=False)` and `pickle.dump`.
    let old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec();
    let pickle = b"\x80\x04\x95\x1a\0\0\0\0\0\0\0}\x94.".to_vec();
    for (name, bytes, format) in
        [("a.pt", zip, "a zip archive"), ("b.pth", old, "a pickle"), ("c.bin", pickle, "a pickle")]
    {
        fs::write(folder.file(name), bytes).unwrap();
        let error = load_file(folder.file(name), "cpu").expect_err(name).to_string();
        assert!(error.contains(format) && error.contains("safetensors.torch.save_file"), "{error}");
    }
}
