# Runs a command of a training job after it has checked and copied the job's code: its ConfigMap may be another one by now.
import hashlib, io, os, sys, zipfile
name, expected, mount, folder, message, *command = sys.argv[1:]
try:
  job, archive = (open(f'{mount}/{key}', 'rb').read() for key in ('job.json', 'library.zip'))
  library = zipfile.ZipFile(io.BytesIO(archive))
  if 'library.zip' in library.namelist(): library = zipfile.ZipFile(io.BytesIO(library.read('library.zip')))
  files = {path: library.read(path) for path in library.namelist() if path[-1] != '/'} | {'job.json': job}
  parts = (f'{path}\0{len(files[path])}\0'.encode() + files[path] for path in sorted(files))
  found = hashlib.sha256(b''.join(parts)).hexdigest()
  problem = '' if found == expected else f'was replaced: SHA-256 {found}'
except Exception as error: problem = f'could not be read: {error!r}'
if problem:
  text = f'ConfigMap {name} {problem}, expected SHA-256 {expected}; none of its code was run'
  with open(message, 'w') as file: file.write(text)
  sys.exit(text)
# An earlier container of this pod may have made the copy. job.json is written last: it shows that the copy is complete.
if not os.path.exists(folder + '/job.json'):
  for path in sorted(files, reverse=True):
    target = f'{folder}/{path}'
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target + '.part', 'wb') as file: file.write(files[path])
    os.replace(target + '.part', target)
os.execvp(command[0], command)
